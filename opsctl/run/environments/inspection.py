"""Check the environment of a run's next step on this host."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from opsctl.core.errors import OpsctlError
from opsctl.run.config.load import LoadedRun, expanded_file
from opsctl.run.environments import recipe
from opsctl.run.environments.query import Asked, ask, import_problem, why_not_started
from trainer.formats.attempt.environment import Environment, differences
from trainer.formats.tolerant import decode

#: Facts that differ between nodes.
_OF_THE_HOST = frozenset({"driver", "variables"})
_IMPORTS_AT_ONCE = 4
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*==\s*([^\s;#\\]+)")
Kind = Literal["not in use", "differs", "missing", "more", "cannot be imported", "cannot be seen"]


class Discrepancy(Struct, frozen=True, kw_only=True):
    """One difference from the expected environment."""

    kind: Annotated[Kind, Meta(description="Kind of the difference.")]
    text: Annotated[str, Meta(description="Description in one line.")]
    todo: Annotated[str, Meta(description="Command or advice; empty if obvious.")] = ""


class CheckedEnvironment(Struct, frozen=True, kw_only=True):
    """The result of `env check` on one host."""

    host: Annotated[str, Meta(description="Host of the check.")]
    python: Annotated[str, Meta(description="Path of the environment's interpreter; empty if it did not answer.")]
    held_against: Annotated[str, Meta(description="Path of the expected contents; empty if there are none.")]
    problems: Annotated[list[Discrepancy], Meta(description="Differences from the expected environment.")]


@dataclass(frozen=True)
class Pins:
    """Package -> version, as a requirements file pins them. is_whole: a lock file, so there may be no others."""

    versions: dict[str, str]
    is_whole: bool = False


@dataclass(frozen=True)
class Target:
    """The environment to check."""

    script: Path | None = None  # None: this Python
    variables: dict[str, str] = field(default_factory=dict)
    why_not_started: str = ""  # users who can change the code that it runs

    def ask(self) -> Asked:
        """Return the facts of its Python."""
        if self.why_not_started:
            return Asked(problem=f"it was not started, {self.why_not_started}")
        return ask(self.script, self.variables)


def check(
    target: Target, against: Path | None, imports: Sequence[str], places: recipe.Places | None = None
) -> CheckedEnvironment:
    """Check it against the `environment.json` of a build or an attempt, or a requirements or lock file.

    places: where the environment of the next step should be. If it is another, that is the first problem.
    Raises OpsctlError if `against` cannot be read.
    """
    expected = None if against is None else _expected(against)
    asked = target.ask()
    environment = asked.found
    if environment is None:
        todo = "opsctl env check --trust" if target.why_not_started else ""
        text = f"the environment does not start: {asked.problem}"
        found = [Discrepancy(kind="cannot be seen", text=text, todo=todo)]
    else:
        found = _differences(environment, expected)
        found += [Discrepancy(kind="cannot be seen", text=one) for one in environment.problems]
        found += _not_importable(target, imports)
        if found and places is not None:  # the differences follow from the use of another environment
            found = _not_in_use(target, environment, places) or found
    return CheckedEnvironment(
        host=platform.node(),
        python="" if environment is None else environment.executable,
        held_against="" if against is None else str(against),
        problems=found,
    )


def check_run(loaded: LoadedRun | None, against: Path | None, trust: bool) -> CheckedEnvironment:
    """Check the environment of a run, or this Python if None, against a file or what [environment] asks for.

    trust: as in `target_of`. Raises OpsctlError, RunFileError.
    """
    table = loaded.file.environment if loaded is not None else None
    against, places = expected_of(loaded) if against is None else (against, None)
    return check(target_of(loaded, trust), against, table.imports if table is not None else (), places)


def target_of(loaded: LoadedRun | None, trust: bool) -> Target:
    """Return the environment of a run, or this Python. It is not started if other users control it, unless `trust`."""
    if loaded is None:
        return Target()
    file = expanded_file(loaded)
    script = None if file.run.environment is None else Path(file.run.environment)
    why = "" if trust else why_not_started(file, loaded.path, loaded.paths.output)
    return Target(script, dict(file.env), why)


def expected_of(loaded: LoadedRun | None) -> tuple[Path | None, recipe.Places | None]:
    """Return the file to check a run's environment against (as built, else the only requirements file), and its places.

    Without requirements in [environment] both are None.
    """
    if loaded is None or loaded.file.environment is None or not loaded.file.environment.requirements:
        return None, None
    found = recipe.recipe_of(loaded)
    newest = found.places.newest()
    only = found.requirements[0] if len(found.requirements) == 1 else None
    return (only if newest is None else newest / recipe.FROZEN), found.places


def _expected(against: Path) -> Environment | Pins:
    """Read what an environment should be. Raises OpsctlError."""
    try:
        text = against.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OpsctlError(f"cannot read {against}: {getattr(error, 'strerror', None) or 'no text'}") from None
    if text.lstrip().startswith("{"):
        found = decode(text, Environment)
        if found is None or not found.python:
            raise OpsctlError(f"{against} is not the environment.json of a build or an attempt")
        return found
    pins = (_PIN.match(line.strip()) for line in text.splitlines())
    versions = {re.sub(r"[-_.]+", "-", one[1]).lower(): one[2] for one in pins if one}
    return Pins(versions, is_whole=against.name == recipe.LOCK)


def _differences(environment: Environment, expected: Environment | Pins | None) -> list[Discrepancy]:
    """Return packages and, with an Environment, other facts that differ, are missing or are additional."""
    if isinstance(expected, Environment):
        kinds: tuple[tuple[str, Kind], ...] = ((" is gone", "missing"), (" is new", "more"))
        return [
            Discrepancy(kind=next((kind for end, kind in kinds if text.endswith(end)), "differs"), text=text)
            for text in differences(expected, environment, _OF_THE_HOST)
        ]
    if expected is None:
        return []
    found = []
    for name, version in sorted(expected.versions.items()):
        package = environment.packages.get(name)
        if package is None:
            found.append(Discrepancy(kind="missing", text=f"{name} {version} is not installed"))
        elif package.version != version:
            found.append(Discrepancy(kind="differs", text=f"{name} is {package.version}, not {version}"))
    more = {*environment.packages} - {*expected.versions} - {*environment.commits} if expected.is_whole else set()
    return found + [
        Discrepancy(kind="more", text=f"{name} {environment.packages[name].version} is not in the lock")
        for name in sorted(more)
    ]


def _not_in_use(target: Target, environment: Environment, places: recipe.Places) -> list[Discrepancy]:
    """Return a problem if the next step starts with another environment than the built one, with its solution."""
    built = places.newest()
    if built is not None and Path(environment.executable).parent.resolve().is_relative_to(built.resolve()):
        return []
    write = f'under [run] write environment = "{places.activate}"'
    if target.script is None:
        text = "the run file names no [run] environment: the next step starts with the Python that runs opsctl"
    elif built is None:
        return []  # another environment is checked against the requirements
    else:
        text = f"{target.script} starts {environment.executable}, not the environment in {built}"
    return [Discrepancy(kind="not in use", text=text, todo=write if built else f"opsctl env build; {write}")]


def _not_importable(target: Target, imports: Sequence[str]) -> list[Discrepancy]:
    """Import each module in a separate process, so that a crash or hang hides no other problem."""
    with ThreadPoolExecutor(_IMPORTS_AT_ONCE) as pool:
        problems = pool.map(lambda name: import_problem(target.script, target.variables, name), imports)
        return [
            Discrepancy(kind="cannot be imported", text=f"{name}: {why}")
            for name, why in zip(imports, problems, strict=True)
            if why
        ]
