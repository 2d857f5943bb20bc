"""What an environment is built from, and where: the run file's `[environment]` with its paths absolute."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opsctl.core.errors import RunFileError
from opsctl.run.config.expansion import absolute, expand_text
from opsctl.run.config.load import LoadedRun
from opsctl.run.config.schema import EnvironmentTable

#: The one that is in use, a link into `built`; and the script that the run file names, which goes by it.
CURRENT, ACTIVATE = "current", "activate.sh"
#: In one that is built: what is in it, its packages to be installed again, that it is whole.
FROZEN, LOCK, BUILT = "environment.json", "requirements.lock", "built.json"


@dataclass(frozen=True)
class Places:
    """An environment folder, and what is where in it."""

    folder: Path

    @property
    def built(self) -> Path:
        """A folder for each environment, whole ones and one under way."""
        return self.folder / "built"

    @property
    def current(self) -> Path:
        """A link to the one that the next step starts with."""
        return self.folder / CURRENT

    @property
    def activate(self) -> Path:
        """What `[run] environment` names."""
        return self.folder / ACTIVATE

    @property
    def wheels(self) -> Path:
        """What pip has fetched or built: enough to install all of it again without a network."""
        return self.folder / "wheels"

    @property
    def downloads(self) -> Path:
        """The installers' own caches."""
        return self.folder / "downloads"

    @property
    def hub(self) -> Path:
        """HF_HOME of the environments, where what training reads from the hub is fetched into."""
        return self.folder / "hub"

    @property
    def lock(self) -> Path:
        """Held while one is built: one at a time."""
        return self.folder / "lock"

    def newest(self) -> Path | None:
        """The environment that is in use; None before the first."""
        target = self.current.resolve()
        return target if (target / BUILT).is_file() else None


@dataclass(frozen=True)
class Recipe:
    """What to build."""

    table: EnvironmentTable
    python: str  # a version, or an interpreter's path
    requirements: tuple[Path, ...]
    find_links: tuple[str, ...]
    group: str | None
    places: Places
    digest: str  # of all that decides what comes out, the requirement files' text included


def recipe_of(loaded: LoadedRun) -> Recipe:
    """Raises RunFileError where the run file has no `[environment]`, or a requirement file cannot be read."""
    table = loaded.file.environment
    if table is None:
        raise RunFileError(
            f"{loaded.path}: there is no [environment] to build by: name at least requirements = ["
            '"requirements.txt"] in it'
        )
    if not table.requirements:
        raise RunFileError(
            f"{loaded.path}: [environment] requirements is missing: the files that say what goes into it"
        )
    expanded = _expanded(loaded, table)
    here = [absolute(one, loaded.folder, loaded.environment) for one in expanded.requirements]
    links = [
        one if "://" in one else str(absolute(one, loaded.folder, loaded.environment)) for one in expanded.find_links
    ]
    python = expanded.python or sys.executable
    if os.sep in python:
        python = str(absolute(python, loaded.folder, loaded.environment))
    return Recipe(
        table=expanded,
        python=python,
        requirements=tuple(here),
        find_links=tuple(links),
        group=loaded.file.run.group,
        places=Places(absolute(expanded.folder, loaded.folder, loaded.environment)),
        digest=_digest(expanded, python, links, [_text(loaded.path, one) for one in here]),
    )


def _expanded(loaded: LoadedRun, table: EnvironmentTable) -> EnvironmentTable:
    """`table` with every `${VAR}` replaced."""
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


def _digest(table: EnvironmentTable, python: str, links: list[str], texts: list[bytes]) -> str:
    said = {**msgspec.structs.asdict(table), "python": python, "find_links": [*links, *map(_wheels_in, links)]}
    for key in ("folder", "requirements"):
        del said[key]
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for text in texts:
        digest.update(b"\0" + text)
    return digest.hexdigest()[:10]


def _wheels_in(folder: str) -> list[str]:
    """What lies in a folder of wheels: another one there may make another environment."""
    return sorted(_names(Path(folder)))


def _names(folder: Path) -> Iterator[str]:
    if folder.is_dir():
        yield from (path.name for path in folder.iterdir())
