"""Where the shipped templates are: beside the package in a checkout, inside it in an installed wheel."""

from __future__ import annotations

from pathlib import Path


def templates_folder() -> Path:
    """The folder with `*.j2` and `examples/*.toml`."""
    package = Path(__file__).resolve().parent
    inside = package / "_shipped" / "templates"
    return inside if inside.is_dir() else package.parent / "templates"
