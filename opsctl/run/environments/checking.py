"""Whether an environment is what it should be: what differs, is missing, or is more. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, Struct

from opsctl.run.environments.extension_locks import ExtensionLock
from trainer.formats.attempt.environment import Environment, differences

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*==\s*([^\s;#\\]+)")
#: Changed files of one package that are named.
_MOST_FILES = 3
Kind = Literal["not in use", "differs", "missing", "more", "cannot be imported", "stale lock", "cannot be seen"]
#: What follows from another environment being in use than the one that was built.
_FOLLOWS = ("differs", "missing", "more", "cannot be imported")


class Discrepancy(Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be."""

    kind: Annotated[Kind, Meta(description="What is wrong with it.")]
    text: Annotated[str, Meta(description="The same in a line.")]
    todo: Annotated[str, Meta(description="What to type or to do; empty where that follows from it.")] = ""


class CheckedEnvironment(Struct, frozen=True, kw_only=True):
    """What `env check` found on one host."""

    host: Annotated[str, Meta(description="Where it was looked at.")]
    python: Annotated[str, Meta(description="Path of the environment's interpreter; empty where it did not answer.")]
    held_against: Annotated[
        str, Meta(description="Path of what it should be; empty where there is nothing to hold it to.")
    ]
    problems: Annotated[list[Discrepancy], Meta(description="What is not as it should be.")]


@dataclass(frozen=True)
class Pins:
    """Package -> version, as a requirements or lock file pins them, and whether it is a lock: all that there may be."""

    versions: dict[str, str]
    is_whole: bool = False


def pins_in(text: str, is_whole: bool = False) -> Pins:
    """The `name==version` of a requirements file; other lines are passed over."""
    found = (_PIN.match(line.strip()) for line in text.splitlines())
    return Pins({re.sub(r"[-_.]+", "-", one[1]).lower(): one[2] for one in found if one}, is_whole)


def against_pins(environment: Environment, pins: Pins) -> list[Discrepancy]:
    """Packages that differ from what is pinned, are missing, or with a whole lock are more than it has."""
    found = []
    for name, version in sorted(pins.versions.items()):
        package = environment.packages.get(name)
        if package is None:
            found.append(Discrepancy(kind="missing", text=f"{name} {version} is not installed"))
        elif package.version != version:
            found.append(Discrepancy(kind="differs", text=f"{name} is {package.version}, not {version}"))
    if pins.is_whole:
        more = sorted({*environment.packages} - {*pins.versions} - {*environment.commits})
        found += [
            Discrepancy(kind="more", text=f"{name} {environment.packages[name].version} is not in the lock")
            for name in more
        ]
    return found


def against_frozen(environment: Environment, frozen: Environment, ignored: frozenset[str]) -> list[Discrepancy]:
    """How an environment differs from what it was when it was frozen."""
    kinds: tuple[tuple[str, Kind], ...] = ((" is gone", "missing"), (" is new", "more"))
    return [
        Discrepancy(kind=next((kind for end, kind in kinds if text.endswith(end)), "differs"), text=text)
        for text in differences(frozen, environment, ignored)
    ]


def against_installed(environment: Environment, known: Mapping[str, Mapping[str, str]]) -> list[Discrepancy]:
    """Return the packages whose files were changed after they were installed, apart from changes that are known.

    known: package -> file -> sha256. Nothing is found where the files were not read.
    """
    new = {
        name: {path: digest for path, digest in files.items() if known.get(name, {}).get(path) != digest}
        for name, files in (environment.edited or {}).items()
    }
    return [
        Discrepancy(kind="differs", text=text, todo=f"install {name} again, or freeze what it is now")
        for name, files in new.items()
        for text in edited_words(environment, name, files)
    ]


def edited_words(environment: Environment, name: str, files: Mapping[str, str]) -> Iterator[str]:
    """Name up to a few of a package's changed files, and how many more there are."""
    package = f"{name} {environment.packages[name].version}"
    for path, digest in sorted(files.items())[:_MOST_FILES]:
        yield f"{package}: {path} {'was changed after it was installed' if digest else 'is gone'}"
    if (more := len(files) - _MOST_FILES) > 0:
        yield f"{package}: {more} more files were changed or are gone"


def without_what_follows(problems: Sequence[Discrepancy]) -> list[Discrepancy]:
    """`problems` without those that are so because another environment is in use, where that is the first of them."""
    if not problems or problems[0].kind != "not in use":
        return list(problems)
    return [one for one in problems if one.kind not in _FOLLOWS]


def stale_locks(locks: Sequence[ExtensionLock]) -> list[Discrepancy]:
    """The locks in which whoever compiles next would wait."""
    return [Discrepancy(kind="stale lock", text=_lock_words(lock), todo=_lock_todo(lock)) for lock in locks]


def _lock_words(lock: ExtensionLock) -> str:
    age = f"{lock.age_s / 3600:.1f} hours" if lock.age_s >= 3600 else f"{max(lock.age_s, 0) / 60:.0f} minutes"
    state = "a process here compiles" if lock.is_held_here else f"nothing has changed beside it for {age}"
    return f"{lock.path} of {lock.owner}: whoever uses that extension waits for it; {state}"


def _lock_todo(lock: ExtensionLock) -> str:
    if not lock.is_dead:
        return "wait until it is compiled, or an hour, and look again"
    return "opsctl env check --remove-stale-locks" if lock.is_own else f"ask {lock.owner} to remove it"
