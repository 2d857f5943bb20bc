"""The folders of the shipped templates and scheduled jobs: in a checkout, or in the package of an installed wheel."""

from __future__ import annotations

from pathlib import Path


def templates_folder() -> Path:
    """Return the folder with `*.j2` and `examples/*.toml`."""
    return _shipped("templates")


def cron_folder() -> Path:
    """Return the folder with `hourly/*.slurm` and `daily/*.slurm`."""
    return _shipped("cron")


def _shipped(name: str) -> Path:
    package = Path(__file__).resolve().parents[1]
    inside = package / "_shipped" / name
    return inside if inside.is_dir() else package.parent / name
