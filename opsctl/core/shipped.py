"""Where the shipped templates and cron jobs are: beside the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

from pathlib import Path


def templates_folder() -> Path:
    """The folder with `*.j2` and `examples/*.toml`."""
    return _shipped("templates")


def cron_folder() -> Path:
    """The folder with `hourly/*.slurm` and `daily/*.slurm`."""
    return _shipped("cron")


def _shipped(name: str) -> Path:
    package = Path(__file__).resolve().parents[1]
    inside = package / "_shipped" / name
    return inside if inside.is_dir() else package.parent / name
