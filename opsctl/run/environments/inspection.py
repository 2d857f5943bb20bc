"""Looking at the environment that a run's next step starts with, on this host."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.run.environments import checking, recipe
from opsctl.run.environments.checking import CheckedEnvironment, Discrepancy, Pins
from opsctl.run.environments.extension_locks import ExtensionLock, find_locks
from opsctl.run.environments.query import READ_FILES_S, TIMEOUT_S, Asked, ask_python, ask_script, import_problem
from trainer.formats.attempt.environment import Environment
from trainer.formats.tolerant import decode

#: Another on every node by right.
_OF_THE_HOST = frozenset({"driver", "variables"})
_AT_ONCE = 4


@dataclass(frozen=True)
class Looked:
    """Which environment is looked at."""

    script: Path | None = None  # None: this Python
    variables: dict[str, str] = field(default_factory=dict)
    why_not_started: str = ""  # who else decides what that would run (`starting`)
    reads_files: bool = False  # whether files of packages are compared with what was installed

    def ask(self) -> Asked:
        """What its Python tells."""
        if self.why_not_started:
            return Asked(problem=f"it was not started, {self.why_not_started}")
        how = (READ_FILES_S, "--read-files") if self.reads_files else (TIMEOUT_S,)
        if self.script is None:
            return ask_python(sys.executable, self.variables, *how)
        return ask_script(self.script, self.variables, *how)


def check(
    looked: Looked, against: Path | None, imports: Sequence[str], places: recipe.Places | None = None
) -> CheckedEnvironment:
    """Hold it against `against`: what `env freeze --json` wrote, or a requirements or lock file.

    places: where the environment should be that the next step starts with. That it is another comes first, where it
    is not as it should be. Raises OpsctlError where `against` cannot be read.
    """
    expected = None if against is None else _expected(against)  # a FILE that is none is refused before the long look
    asked = looked.ask()
    environment = asked.found
    found: list[Discrepancy] = []
    if environment is None:
        todo = "opsctl env check --trust" if looked.why_not_started else ""
        found.append(
            Discrepancy(kind="cannot be seen", text=f"the environment does not start: {asked.problem}", todo=todo)
        )
    else:
        found += _differences(environment, expected)
        found += [Discrepancy(kind="cannot be seen", text=one) for one in environment.problems]
        found += _not_importable(looked, imports)
        if found and places is not None:
            found = [*_not_in_use(looked, environment, places), *found]
        found += checking.stale_locks(locks_of(environment))
    return CheckedEnvironment(
        host=platform.node(),
        python="" if environment is None else environment.executable,
        held_against="" if against is None else str(against),
        problems=found,
    )


def locks_of(environment: Environment) -> list[ExtensionLock]:
    """The locks in its folder of compiled extensions."""
    named = environment.variables.get("TORCH_EXTENSIONS_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return find_locks(Path(named) if named else Path(cache) / "torch_extensions")


def remove_dead(locks: Sequence[ExtensionLock]) -> list[str]:
    """Remove the caller's locks that nobody compiles behind; a line for each. Raises nothing: what stays is said."""
    said = []
    for lock in locks:
        if lock.is_dead and lock.is_own:
            try:
                lock.path.unlink()
                said.append(f"removed {lock.path}")
            except OSError as error:
                said.append(f"could not remove {file_problem(error, lock.path)}")
    return said


def what_it_should_be(places: recipe.Places, requirements: Sequence[Path]) -> Path | None:
    """What there is to hold an environment against: as it was built, else the only requirements file."""
    newest = places.newest()
    if newest is not None:
        return newest / recipe.FROZEN
    return requirements[0] if len(requirements) == 1 else None


def _not_in_use(looked: Looked, environment: Environment, places: recipe.Places) -> list[Discrepancy]:
    """That the next step starts with another environment than the one that was built, and what to write or type."""
    built = places.newest()
    if built is not None and Path(environment.executable).parent.resolve().is_relative_to(built.resolve()):
        return []
    write = f'under [run] write environment = "{places.activate}"'
    if looked.script is None:
        text = "the run file names no [run] environment: the next step starts with the Python that runs opsctl"
    elif built is None:
        return []  # one that somebody else made is held to the requirements
    else:
        text = f"{looked.script} starts {environment.executable}, not what was built in {built}"
    return [Discrepancy(kind="not in use", text=text, todo=write if built else f"opsctl env build; {write}")]


def _expected(against: Path) -> Environment | Pins:
    """Read what an environment should be. Raises OpsctlError."""
    try:
        text = against.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OpsctlError(f"cannot read {against}: {getattr(error, 'strerror', None) or 'no text'}") from None
    if text.lstrip().startswith("{"):
        frozen = decode(text, FrozenFile)
        said = decode(text, Environment) if frozen is None else frozen.environment
        if said is None or not said.python:
            raise OpsctlError(f"{against} is not what opsctl env freeze --json writes")
        return said
    return checking.pins_in(text, is_whole=against.name == recipe.LOCK)


def _differences(environment: Environment, expected: Environment | Pins | None) -> list[Discrepancy]:
    if isinstance(expected, Environment):
        installed = checking.against_installed(environment, expected.edited or {})
        return [*checking.against_frozen(environment, expected, _OF_THE_HOST), *installed]
    pinned = [] if expected is None else checking.against_pins(environment, expected)
    return [*pinned, *checking.against_installed(environment, {})]


class FrozenFile(msgspec.Struct, frozen=True):
    """What `env freeze --json` prints."""

    environment: Environment


def _not_importable(looked: Looked, imports: Sequence[str]) -> list[Discrepancy]:
    """Each in a process of its own: one that crashes or hangs hides no other."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        words = pool.map(lambda name: import_problem(looked.script, looked.variables, name), imports)
        return [
            Discrepancy(kind="cannot be imported", text=f"{name}: {why}")
            for name, why in zip(imports, words, strict=True)
            if why
        ]
