"""Build an environment next to those in use: in a new folder, checked, and only then used by the link.

A complete environment is neither changed nor removed, so running jobs keep theirs. A killed build leaves a folder
without its mark, which the next build removes; the next build reuses the downloads.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import locked, make_folder, read_state, remove, write_atomically, write_state
from opsctl.core.process import Ended, Overdue, find_program, run_program
from opsctl.core.timestamps import now
from opsctl.run.environments.query import account_environment, ask
from opsctl.run.environments.recipe import ACTIVATE, BUILT, CURRENT, FROZEN, LOCK, Places, Recipe
from opsctl.run.render.templates import render_template
from opsctl.run.state.group_folder import Kind, open_to
from trainer.formats.attempt.environment import digest_of
from trainer.formats.json_text import Moment, json_file_text

KIND = Kind("an environment folder", "[environment] folder", "the run file's [run]", "opsctl env build")
#: Seconds for one command of a build: torch's wheels over a slow connection, or a large extension.
STAGE_S = 3 * 3600.0
_LOCK_WAIT_S = 2.0
_LAST_LINES = 3
#: The user's settings of the installers, which would change a build; settings for reaching an index stay.
_SETTINGS = ("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV", "CONDA_")
_KEPT = ("UV_HTTP_TIMEOUT", "UV_INDEX_USERNAME", "UV_INDEX_PASSWORD")
_COMPILE = """
import importlib, sys
module, _, function = sys.argv[1].partition(":")
if function:
    getattr(importlib.import_module(module), function)()
else:
    from deepspeed.ops.op_builder.all_ops import ALL_OPS
    if module not in ALL_OPS:
        sys.exit(f"DeepSpeed has no op {module}; it has {', '.join(sorted(ALL_OPS))}")
    ALL_OPS[module].load(verbose=False)
"""
_SOURCED = 'source "$1"; shift; exec "$@"'


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """`built.json`: marks a complete environment."""

    recipe: str  # digest of its recipe
    environment: str  # digest of its contents
    at: Moment


class BuiltEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The environment in use after a build."""

    folder: Annotated[str, Meta(description="The environment that the next step starts with.")]
    new: Annotated[bool, Meta(description="False if it existed, built from the same recipe.")]
    lock: Annotated[str, Meta(description="Requirements file that pins all packages.")]


@dataclass(frozen=True)
class Built:
    """The result of a build."""

    folder: Path
    is_new: bool  # False: the one in use was built from the same recipe


def build(recipe: Recipe, offline: bool, again: bool, report: Callable[[str], None]) -> Built:
    """Build `recipe` and point `current` to it; do nothing if the one in use has this recipe, unless `again`.

    offline: use only the caches. report: gets a line for each step. Raises OpsctlError with the last lines of the step
    that failed; the environment in use then stays in use.
    """
    places = recipe.places
    open_to(places.folder, recipe.group, KIND)
    with locked(places.folder, places.lock, _LOCK_WAIT_S, "build an environment"), _ended_with_its_command():
        in_use = places.newest()
        if in_use is not None and not again and _is_of(places, in_use, recipe):
            return Built(in_use, False)
        _remove_incomplete(places)
        folder = places.built / f"{now():%Y%m%d-%H%M%S}-{recipe.digest}-{secrets.token_hex(2)}"
        if os.pathsep in str(folder):
            raise OpsctlError(f"{folder} contains a colon, which no PATH can hold: choose another [environment] folder")
        script = _activation_script(recipe, folder)  # raises before any download if a value does not fit in a script
        make_folder(places.folder, folder)
        try:
            _fill(recipe, folder, script, offline, report)
            _put_in_use(places, folder)
        except OSError as error:
            raise OpsctlError(
                f"cannot build it: {file_problem(error, folder)}; the environment in use was not changed"
            ) from None
        return Built(folder, True)


def planned(recipe: Recipe, offline: bool, again: bool) -> list[str]:
    """Return one line for each step of `build` without changing anything. Raises OpsctlError without uv."""
    in_use = recipe.places.newest()
    if in_use is not None and not again and _is_of(recipe.places, in_use, recipe):
        return [f"nothing to do: {in_use} was built from the same recipe"]
    table = recipe.table
    return [
        *(f"{words}: {' '.join(command)}" for words, command in stages(recipe, recipe.places.built / "DATE", offline)),
        *(f"compile {name}" for name in table.extensions),
        *([f"import {', '.join(table.imports)}"] if table.imports else []),
        f"point {recipe.places.current} to it",
    ]


def stages(recipe: Recipe, folder: Path, offline: bool) -> list[tuple[str, tuple[str, ...]]]:
    """Return (description, uv command) of each step that creates the environment. Raises OpsctlError without uv."""
    path = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
    uv = find_program("uv", {"PATH": path})
    if uv is None:
        raise OpsctlError("uv is not in PATH: python -m pip install uv")
    lock = str(folder / LOCK)
    net = ("--offline",) if offline else ()
    links = tuple(word for one in recipe.find_links for word in ("--find-links", one))
    # With folders of wheels and without an index, packages come only from those folders.
    index = ("--index-url", recipe.table.index) if recipe.table.index else ("--no-index",) if links else ()
    common = ("--quiet", *net, *index, *links, "--python", str(folder / "venv" / "bin" / "python"))
    pins = ("--generate-hashes", "--no-header", "--no-annotate", "--output-file", lock)
    return [
        ("create the environment", (uv, "venv", "--quiet", *net, "--python", recipe.python, str(folder / "venv"))),
        ("choose every version", (uv, "pip", "compile", *common, *pins, *map(str, recipe.requirements))),
        ("install", (uv, "pip", "install", *common, "--require-hashes", "-r", lock)),
    ]


@contextlib.contextmanager
def _ended_with_its_command() -> Iterator[None]:
    """On SIGTERM, for example at a job's limit, also end the child processes: an installer would continue."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _activation_script(recipe: Recipe, folder: Path) -> str:
    return render_template(
        "environment-activate.sh.j2",
        folder=str(folder),
        group=recipe.group,
        modules=recipe.table.modules,
        architectures=recipe.table.architectures,
    )


def _fill(recipe: Recipe, folder: Path, text: str, offline: bool, report: Callable[[str], None]) -> None:
    """Do all steps before the mark of completion. text: the environment's script."""
    places, table, script = recipe.places, recipe.table, folder / ACTIVATE
    umask = 0o007 if recipe.group is not None else 0o077

    def step(words: str, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        report(words)
        ended = _run(command, environment, umask)
        if ended.code:
            raise OpsctlError(f"cannot {words}: {_last_words(ended)}; the environment in use was not changed")

    def sourced(words: str, *arguments: str) -> None:
        bash = find_program("bash", os.environ) or "/bin/bash"
        command = (bash, "--login", "-c", _SOURCED, "opsctl", str(script), "python", "-P", "-c", *arguments)
        step(words, command, account_environment())

    for one in (places.downloads, folder / "extensions"):
        make_folder(places.folder, one)
    for words, command in stages(recipe, folder, offline):
        step(words, command, _environment_of_uv(places))
    # uv ignores the umask for some files.
    step("close it to others", ("/bin/chmod", "-R", "o-rwx", str(folder)), os.environ)
    write_atomically(places.folder, script, text)
    for name in table.extensions:
        sourced(f"compile {name}", _COMPILE, name)
    if table.imports:
        sourced(f"import {', '.join(table.imports)}", f"import {', '.join(table.imports)}")
    asked = ask(script, {})
    if asked.found is None:
        raise OpsctlError(f"{folder} does not start: {asked.problem}; the environment in use was not changed")
    if Path(asked.found.executable).parent.resolve() != (folder / "venv" / "bin").resolve():
        raise OpsctlError(
            f"{script} starts {asked.found.executable}, not the new environment. Nothing in use was changed"
        )
    frozen = msgspec.structs.replace(asked.found, took_s=0.0)
    write_atomically(places.folder, folder / FROZEN, json_file_text(frozen))
    write_state(places.folder, folder / BUILT, Mark(recipe=recipe.digest, environment=digest_of(frozen), at=now()))


def _run(command: tuple[str, ...], environment: Mapping[str, str], umask: int) -> Ended:
    try:
        return run_program(command, environment, STAGE_S, folder="/", umask=umask)
    except Overdue:
        raise OpsctlError(f"{command[0]} did not end within {STAGE_S / 3600:g} hours and was killed") from None
    except (OSError, ValueError) as error:
        raise OpsctlError(f"{command[0]} cannot be run: {error}") from None


def _last_words(ended: Ended) -> str:
    text = (ended.err or ended.out).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-_LAST_LINES:]) or f"exit code {ended.code}"


def _environment_of_uv(places: Places) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(_SETTINGS)}
    own = {
        "UV_NO_CONFIG": "1",
        "UV_CACHE_DIR": str(places.downloads / "uv"),
        "UV_PYTHON_INSTALL_DIR": str(places.downloads / "python"),
        "UV_NO_PROGRESS": "1",
    }
    return {**kept, **own}


def _is_of(places: Places, folder: Path, recipe: Recipe) -> bool:
    mark = read_state(places.folder, folder / BUILT, Mark)
    return mark is not None and mark.recipe == recipe.digest


def _remove_incomplete(places: Places) -> None:
    """Remove builds that were killed; only the lock's holder builds, so no process will complete them."""
    for one in places.folder.iterdir():
        if one.name.startswith((f".{CURRENT}.", f".{ACTIVATE}.")):
            remove(places.folder, one)
    in_use = places.current.resolve()
    for one in places.built.iterdir() if places.built.is_dir() else ():
        if not (one / BUILT).is_file() and not one.is_symlink() and one != in_use:
            shutil.rmtree(one, ignore_errors=True)


def _put_in_use(places: Places, folder: Path) -> None:
    """Point `current` to it in one step: a process that follows the link finds the old or the new one."""
    current = render_template("environment-current.sh.j2", current=str(places.current))
    write_atomically(places.folder, places.activate, current)
    beside = places.folder / f".{places.current.name}.{secrets.token_hex(4)}"
    beside.symlink_to(folder.relative_to(places.folder))
    try:
        beside.replace(places.current)
    except BaseException:
        remove(places.folder, beside)
        raise
