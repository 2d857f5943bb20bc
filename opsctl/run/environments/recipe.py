"""The recipe of an environment, and its folder: the run file's `[environment]` with absolute paths."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opsctl.core.errors import RunFileError
from opsctl.run.config.expansion import absolute, expand_text
from opsctl.run.config.load import LoadedRun
from opsctl.run.config.schema import EnvironmentTable

#: The link to the environment in use, in the folder; and the script that the run file names, which follows it.
CURRENT, ACTIVATE = "current", "activate.sh"
#: In a built environment: its contents, its packages to install again, the mark that it is complete.
FROZEN, LOCK, BUILT = "environment.json", "requirements.lock", "built.json"


class Places:
    """An environment folder and the paths in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.built = folder / "built"  # a folder for each environment
        self.current = folder / CURRENT  # the link
        self.activate = folder / ACTIVATE  # what `[run] environment` names
        self.downloads = folder / "downloads"  # uv's own cache
        self.lock = folder / "lock"  # held while one is built

    def newest(self) -> Path | None:
        """Return the environment in use; None before the first."""
        target = self.current.resolve()
        return target if (target / BUILT).is_file() else None


@dataclass(frozen=True)
class Recipe:
    """The recipe of an environment."""

    table: EnvironmentTable
    python: str  # a version, or the path of an interpreter
    requirements: tuple[Path, ...]
    find_links: tuple[str, ...]
    group: str | None
    places: Places
    digest: str  # of everything that affects the result, including the text of the requirement files


def recipe_of(loaded: LoadedRun) -> Recipe:
    """Return what to build. Raises RunFileError without `[environment]`, or if a requirement file cannot be read."""
    table = loaded.file.environment
    if table is None or not table.requirements:
        raise RunFileError(
            f"{loaded.path}: [environment] requirements is missing: name the files that list the packages, as "
            'requirements = ["requirements.txt"]'
        )
    expanded = _expanded(loaded, table)

    def place(path: str) -> Path:
        return absolute(path, loaded.folder, loaded.environment)

    requirements = tuple(place(one) for one in expanded.requirements)
    links = tuple(one if "://" in one else str(place(one)) for one in expanded.find_links)
    python = expanded.python or sys.executable
    if os.sep in python:
        python = str(place(python))
    digest = _digest(expanded, python, links, [_text(loaded.path, one) for one in requirements])
    return Recipe(expanded, python, requirements, links, loaded.file.run.group, Places(place(expanded.folder)), digest)


def _expanded(loaded: LoadedRun, table: EnvironmentTable) -> EnvironmentTable:
    """Replace every `${VAR}`."""
    variables = loaded.variables()

    def expand(key: str, value: object) -> object:
        where = f"{loaded.path}: [environment] {key}"
        if isinstance(value, str):
            return expand_text(value, variables, where)
        return tuple(expand_text(one, variables, where) for one in value) if isinstance(value, tuple) else value

    return EnvironmentTable(**{key: expand(key, getattr(table, key)) for key in table.__struct_fields__})  # type: ignore[arg-type]


def _text(run_file: Path, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunFileError(f"{run_file}: [environment] requirements: {path}: {error.strerror}") from None


def _digest(table: EnvironmentTable, python: str, links: tuple[str, ...], texts: list[bytes]) -> str:
    """Hash the recipe. Includes the names of wheels in `find_links`, because other wheels can change the result."""
    wheels = [sorted(path.name for path in Path(one).iterdir()) if Path(one).is_dir() else [] for one in links]
    values = {**msgspec.structs.asdict(table), "python": python, "find_links": [*links, *wheels]}
    for key in ("folder", "requirements"):
        del values[key]
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode())
    for text in texts:
        digest.update(b"\0" + text)
    return digest.hexdigest()[:10]
