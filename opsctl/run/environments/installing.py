"""The commands of uv and pip that make an environment, fetch what goes into it, and put it there. Pure."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.process import find_program
from opsctl.run.environments.recipe import LOCK, Recipe

#: What a person's own settings would change of a build.
_SETTINGS = ("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV", "CONDA_")
#: How to reach an index from here is the person's to say, and no secret of theirs stands in a run file.
_KEPT = ("PIP_CERT", "PIP_PROXY", "UV_HTTP_TIMEOUT", "UV_INDEX_USERNAME", "UV_INDEX_PASSWORD", "PIP_KEYRING_PROVIDER")


@dataclass(frozen=True)
class Stage:
    """One command of a build."""

    words: str  # what it does, for people
    command: tuple[str, ...]


def stages(recipe: Recipe, folder: Path, offline: bool, environment: Mapping[str, str]) -> list[Stage]:
    """The commands, in order. offline: nothing is fetched, all comes from the caches of an earlier build.

    Raises OpsctlError where the tool is not here.
    """
    return (
        _of_uv(recipe, folder, offline, environment)
        if recipe.table.tool == "uv"
        else _of_pip(recipe, folder, offline, environment)
    )


def fetched_into(folder: Path) -> Path:
    """Where pip puts wheels at first: it writes them in place, and half a one would be taken for a whole one."""
    return folder / "fetched"


def installers_environment(recipe: Recipe, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of the installers, without a person's own settings."""
    kept = {name: value for name, value in environment.items() if name in _KEPT or not name.startswith(_SETTINGS)}
    downloads = recipe.places.downloads
    own = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_CACHE_DIR": str(downloads / "pip"),
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_NO_CONFIG": "1",
        "UV_CACHE_DIR": str(downloads / "uv"),
        "UV_PYTHON_INSTALL_DIR": str(downloads / "python"),
        "UV_NO_PROGRESS": "1",
    }
    return {**kept, **own}


def _of_uv(recipe: Recipe, folder: Path, offline: bool, environment: Mapping[str, str]) -> list[Stage]:
    uv = _uv(environment)
    python, lock = str(folder / "venv" / "bin" / "python"), str(folder / LOCK)
    source = _source(recipe)
    net = ("--offline",) if offline else ()
    requirements = tuple(map(str, recipe.requirements))
    settle = ("--quiet", "--generate-hashes", "--no-header", "--no-annotate", *net, *source, "--python", python)
    install = ("--quiet", "--require-hashes", *net, *source, "--python", python, "-r", lock)
    return [
        Stage("make it", (uv, "venv", "--quiet", *net, "--python", recipe.python, str(folder / "venv"))),
        Stage("settle every version", (uv, "pip", "compile", *settle, "--output-file", lock, *requirements)),
        Stage("install", (uv, "pip", "install", *install)),
    ]


def _of_pip(recipe: Recipe, folder: Path, offline: bool, environment: Mapping[str, str]) -> list[Stage]:
    base = _interpreter(recipe.python, environment)
    fetched = str(fetched_into(folder))
    python, wheels = str(folder / "venv" / "bin" / "python"), str(recipe.places.wheels)
    pip = (base, "-P", "-m", "pip", "--python", python)
    files = tuple(word for one in recipe.requirements for word in ("-r", str(one)))
    fetch = Stage(
        "fetch and build wheels",
        (*pip, "wheel", "--quiet", *_source(recipe), "--find-links", wheels, "--wheel-dir", fetched, *files),
    )
    return [
        Stage("make it", (base, "-P", "-m", "venv", "--without-pip", str(folder / "venv"))),
        *(() if offline else (fetch,)),
        Stage("install", (*pip, "install", "--quiet", "--no-index", "--find-links", wheels, *files)),
    ]


def _source(recipe: Recipe) -> tuple[str, ...]:
    """Where packages come from: without an index named and with folders of wheels, from those alone."""
    links = tuple(word for one in recipe.find_links for word in ("--find-links", one))
    if recipe.table.index is not None:
        return ("--index-url", recipe.table.index, *links)
    return ("--no-index", *links) if links else ()


def _uv(environment: Mapping[str, str]) -> str:
    beside_us = str(Path(sys.executable).parent)
    found = find_program("uv", {"PATH": os.pathsep.join((environment.get("PATH", ""), beside_us))})
    if found is None:
        raise OpsctlError('uv is not in PATH: python -m pip install uv, or write tool = "pip" under [environment]')
    return found


def _interpreter(python: str, environment: Mapping[str, str]) -> str:
    found = python if os.sep in python else find_program(f"python{python}", environment)
    if found is None or not os.access(found, os.X_OK):
        raise OpsctlError(f'there is no Python {python} here: load its module, or write tool = "uv", which fetches one')
    return found
