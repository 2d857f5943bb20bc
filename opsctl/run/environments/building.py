"""Building an environment beside those in use: in a folder of its own, looked at, and only then named by the link.

Whoever trains goes on with the one it has: no environment is changed after it is whole, and none is removed. A build
that was cut off leaves a folder without its mark, which the next build removes; what had been fetched it finds again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType

import msgspec

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import locked, make_folder, read_state, remove, write_atomically, write_state
from opsctl.core.process import Ended, Overdue, find_program, run_program
from opsctl.core.timestamps import now
from opsctl.run.environments.activation import activation_script, current_script
from opsctl.run.environments.installing import fetched_into, installers_environment, stages
from opsctl.run.environments.lock import lock_text
from opsctl.run.environments.query import account_environment, ask_script
from opsctl.run.environments.recipe import ACTIVATE, BUILT, CURRENT, FROZEN, LOCK, Places, Recipe
from opsctl.run.state.group_folder import Kind, open_to
from trainer.formats.attempt.environment import digest_of
from trainer.formats.json_text import Moment, json_file_text

KIND = Kind("an environment folder", "[environment] folder", "the run file's [run]", "opsctl env build")
#: For one command of a build: torch's wheels over a slow line, or a large extension.
STAGE_S = 3 * 3600.0
_LOCK_WAIT_S = 2.0
_LAST_LINES = 3
#: Of a repository what training reads: its tokenizer and configuration, not the weights.
_FETCHED = ("*.json", "*.txt", "*.model", "*.jinja", "*.py", "*.tiktoken")
_FETCH = """
import sys
from huggingface_hub import snapshot_download
for name in sys.argv[2:]:
    snapshot_download(name, allow_patterns=sys.argv[1].split())
"""
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
    """`built.json`: that this environment is whole."""

    recipe: str  # digest of what it was built from
    environment: str  # digest of what is in it
    at: Moment


@dataclass(frozen=True)
class Built:
    """What came of a build."""

    folder: Path
    is_new: bool  # False: what is in use was built from the same
    others: int  # whole ones beside it, which running jobs may use


def build(recipe: Recipe, offline: bool, again: bool, say: Callable[[str], None]) -> Built:
    """Build what `recipe` says and let `current` name it; nothing where that is what is in use, unless `again`.

    offline: from the caches alone. say: told what is done, a line each. Raises OpsctlError with the last words of what
    failed; what is in use then stays so.
    """
    places = recipe.places
    open_to(places.folder, recipe.group, KIND)
    with locked(places.folder, places.lock, _LOCK_WAIT_S, "build an environment"), _ended_with_its_command():
        in_use = places.newest()
        if in_use is not None and not again and _is_of(places, in_use, recipe):
            return Built(in_use, False, _others(places, in_use))
        _clear_what_was_cut_off(places)
        folder = places.built / f"{now():%Y%m%d-%H%M%S}-{recipe.digest}-{secrets.token_hex(2)}"
        _refuse_what_no_path_can_hold(folder)
        script = activation_script(recipe, folder)  # raises for what no script can hold, before anything is fetched
        make_folder(places.folder, folder)
        try:
            _fill(recipe, folder, script, offline, say)
            _let_it_be_used(places, folder)
        except OSError as error:
            raise OpsctlError(
                f"cannot build it: {file_problem(error, folder)}; what is in use was not changed"
            ) from None
        return Built(folder, True, _others(places, folder))


@contextlib.contextmanager
def _ended_with_its_command() -> Iterator[None]:
    """Told to end, as a job is at its limit, end what was started too: an installer would go on by itself."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def would_do(recipe: Recipe, offline: bool, again: bool) -> list[str]:
    """What `build` would do, a line each; changes nothing. Raises OpsctlError where the tool is not here."""
    in_use = recipe.places.newest()
    if in_use is not None and not again and _is_of(recipe.places, in_use, recipe):
        return [f"nothing: {in_use} was built from the same"]
    folder = recipe.places.built / f"DATE-{recipe.digest}"
    commands = stages(recipe, folder, offline, os.environ)
    return [
        *(f"{stage.words}: {' '.join(stage.command)}" for stage in commands),
        *([f"fetch from the hub: {', '.join(recipe.table.hub)}"] if recipe.table.hub and not offline else []),
        *(f"compile {name}" for name in recipe.table.extensions),
        *([f"import {', '.join(recipe.table.imports)}"] if recipe.table.imports else []),
        f"let {recipe.places.current} name it",
    ]


def _refuse_what_no_path_can_hold(folder: Path) -> None:
    if os.pathsep in str(folder):
        raise OpsctlError(f"{folder} has a colon in it, which no PATH can hold: write another [environment] folder")


def _fill(recipe: Recipe, folder: Path, text: str, offline: bool, say: Callable[[str], None]) -> None:
    """Everything up to the mark that it is whole. text: its script's."""
    places, table = recipe.places, recipe.table
    umask = 0o007 if recipe.group is not None else 0o077
    environment = installers_environment(recipe, os.environ)
    for one in (places.wheels, places.downloads, folder / "extensions"):
        make_folder(places.folder, one)
    for stage in stages(recipe, folder, offline, os.environ):
        say(stage.words)
        _done(stage.words, _run(stage.command, environment, umask))
        _keep_fetched(folder, places)
    _close_to_others(folder)
    script = folder / ACTIVATE
    write_atomically(places.folder, script, text)
    if table.hub and not offline:
        say(f"fetch {', '.join(table.hub)} from the hub")
        command = (sys.executable, "-P", "-c", _FETCH, " ".join(_FETCHED), *table.hub)
        _done("fetch from the hub", _run(command, _of_the_hub(places, os.environ), umask))
    for name in table.extensions:
        say(f"compile {name}")
        _done(f"compile {name}", _sourced(script, ("python", "-P", "-c", _COMPILE, name), umask))
    if table.imports:
        say(f"import {', '.join(table.imports)}")
        _done(
            "import what has to be importable",
            _sourced(script, ("python", "-P", "-c", f"import {', '.join(table.imports)}"), umask),
        )
    asked = ask_script(script, {})
    if asked.found is None:
        raise OpsctlError(f"what is in {folder} cannot be told: {asked.problem}; nothing in use was changed")
    if Path(asked.found.executable).parent.resolve() != (folder / "venv" / "bin").resolve():
        raise OpsctlError(f"{script} starts {asked.found.executable}, not what was built; nothing in use was changed")
    frozen = msgspec.structs.replace(asked.found, took_s=0.0)
    if table.tool == "pip":
        write_atomically(places.folder, folder / LOCK, lock_text(frozen, places.wheels))
    write_atomically(places.folder, folder / FROZEN, json_file_text(frozen))
    write_state(places.folder, folder / BUILT, Mark(recipe=recipe.digest, environment=digest_of(frozen), at=now()))


def _keep_fetched(folder: Path, places: Places) -> None:
    """Whole wheels where later builds look for them, each in one step."""
    fetched = fetched_into(folder)
    if fetched.is_dir():
        for wheel in fetched.iterdir():
            wheel.replace(places.wheels / wheel.name)
        fetched.rmdir()


def _close_to_others(folder: Path) -> None:
    """Installers do not all keep to the umask: uv leaves a file in it that everybody may write."""
    for at, folders, files in os.walk(folder):
        for path in (Path(at, name) for name in (*folders, *files)):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & 0o007:
                path.chmod(stat.S_IMODE(mode) & ~0o007)


def _sourced(script: Path, command: tuple[str, ...], umask: int) -> Ended:
    bash = find_program("bash", os.environ) or "/bin/bash"
    return _run((bash, "--login", "-c", _SOURCED, "opsctl", str(script), *command), account_environment(), umask)


def _run(command: tuple[str, ...], environment: Mapping[str, str], umask: int) -> Ended:
    try:
        return run_program(command, environment, STAGE_S, folder="/", umask=umask)
    except Overdue:
        raise OpsctlError(f"{command[0]} had not ended after {STAGE_S / 3600:g} hours: it was ended") from None
    except (OSError, ValueError) as error:
        raise OpsctlError(f"{command[0]} cannot be run: {error}") from None


def _done(what: str, ended: Ended) -> None:
    if ended.code:
        lines = [
            line.strip() for line in (ended.err or ended.out).decode(errors="replace").splitlines() if line.strip()
        ]
        words = " | ".join(lines[-_LAST_LINES:]) or f"exit code {ended.code}"
        raise OpsctlError(f"cannot {what}: {words}; what is in use was not changed")


def _of_the_hub(places: Places, environment: Mapping[str, str]) -> dict[str, str]:
    """The token stays where it is, and is not copied beside what is fetched."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "/")) / ".cache")
    home = environment.get("HF_HOME") or str(Path(cache) / "huggingface")
    token = environment.get("HF_TOKEN_PATH") or str(Path(home) / "token")
    return {**environment, "HF_HOME": str(places.hub), "HF_TOKEN_PATH": token, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def _is_of(places: Places, folder: Path, recipe: Recipe) -> bool:
    mark = read_state(places.folder, folder / BUILT, Mark)
    return mark is not None and mark.recipe == recipe.digest


def _others(places: Places, folder: Path) -> int:
    return sum(one != folder and (one / BUILT).is_file() for one in places.built.iterdir())


def _clear_what_was_cut_off(places: Places) -> None:
    """Whoever holds the lock is the only one who builds: what has no mark nobody will finish."""
    for one in places.folder.iterdir():
        if one.name.startswith((f".{CURRENT}.", f".{ACTIVATE}.")):
            remove(places.folder, one)
    in_use = places.current.resolve()
    for one in places.built.iterdir() if places.built.is_dir() else ():
        if not (one / BUILT).is_file() and not one.is_symlink() and one != in_use:
            shutil.rmtree(one, ignore_errors=True)


def _let_it_be_used(places: Places, folder: Path) -> None:
    """In one step: whoever follows the link finds the old or the new one."""
    write_atomically(places.folder, places.activate, current_script(places))
    beside = places.folder / f".{places.current.name}.{secrets.token_hex(4)}"
    beside.symlink_to(folder.relative_to(places.folder))
    try:
        beside.replace(places.current)
    except BaseException:
        remove(places.folder, beside)
        raise


def built_at(places: Places, folder: Path) -> datetime | None:
    """When the environment in `folder` was whole; None where it is not."""
    mark = read_state(places.folder, folder / BUILT, Mark)
    return None if mark is None else mark.at
