"""A check of the doctor: a question, a pure function of what was seen, and the source that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from opsctl.core.dirwalk.file_system import Filled
from opsctl.monitoring.snapshot import CronSeen
from opsctl.run.config.schema import RunFile
from opsctl.run.environments.inspection import Discrepancy


@dataclass(frozen=True)
class AccountSeen:
    """The account that runs the command."""

    name: str
    default_group: str
    umask: int
    group_problem: str = ""  # why the run's group cannot be shared with
    profiles: Mapping[Path, str] = field(default_factory=dict)  # -> why others can change it; empty where they cannot
    profile_problem: str = ""  # why what they say cannot be used


@dataclass(frozen=True)
class SoftwareSeen:
    """Programs and packages that this shell and this Python find."""

    python: tuple[int, int, int]
    executable: str
    programs: Mapping[str, str]  # name -> path, of those that are there
    packages: Mapping[str, bool]  # module -> whether it is there
    former_version: str | None = None  # of a distribution with the former name, which is also another project's


@dataclass(frozen=True)
class SlurmSeen:
    """The answer of the cluster's controller."""

    name: str
    version: str
    accounting_type: str
    accounting_problem: str  # why the accounting database does not answer; empty where it does or there is none
    partitions: frozenset[str]


@dataclass(frozen=True)
class FolderSeen:
    """A folder, and what its file system can do. None: that could not be tried there."""

    path: Path
    is_there: bool
    is_writable: bool = True  # it, or where it would be made
    mode: int = 0
    group: str = ""
    owner: str = ""
    file_system: str = ""  # its type: ext4, nfs4, lustre
    filled: Filled | None = None
    has_locks: bool | None = None
    skew_s: float | None = None  # the file server's clock less this host's


@dataclass(frozen=True)
class HostSeen:
    """The resources that this host gives to processes."""

    name: str
    shm_bytes: int | None
    limits: Mapping[str, int]  # soft limits; -1: none
    driver: str  # of NVIDIA's GPUs; empty without one
    gpus: int


@dataclass(frozen=True)
class EnvironmentSeen:
    """The run's environment script, and what is behind it."""

    script: Path | None
    is_there: bool = True
    others_can_change: str = ""  # why it was not sourced
    problem: str = ""  # why it does not start
    held_against: Path | None = None
    discrepancies: tuple[Discrepancy, ...] = ()


@dataclass(frozen=True)
class KernelsSeen:
    """Compiled operations for the GPUs that the run asks for."""

    name: str
    state: str  # as `opsctl kernels list` has it
    folders: tuple[str, ...]
    build: str  # what to type


@dataclass(frozen=True)
class LmEvalSeen:
    """The Python that the run's checkpoints are evaluated in."""

    python: str
    version: str = ""  # of its lm-eval; empty where there is none
    others_can_change: str = ""  # why it was not started
    problem: str = ""  # why it does not start, or has no lm-eval
    no_folders: tuple[str, ...] = ()  # of [evaluation] include


@dataclass(frozen=True)
class DeskSeen:
    """The scheduler and the alert channels."""

    cron: CronSeen | None
    channels: int


@dataclass(frozen=True)
class Seen:
    """One look. A part is None where it was not looked at, or could not be: then its problem is in `problems`."""

    now: datetime
    run: RunFile | None = None  # None: no run is at hand
    run_problem: str = ""  # why the run file cannot be used
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the run file as written
    jobs: Mapping[str, Any] = field(default_factory=dict)  # [jobs] of the profiles
    account: AccountSeen | None = None
    software: SoftwareSeen | None = None
    slurm: SlurmSeen | None = None
    output: FolderSeen | None = None
    home: FolderSeen | None = None
    host: HostSeen | None = None
    environment: EnvironmentSeen | None = None
    kernels: KernelsSeen | None = None  # None too where only a node can tell which GPUs there are
    lm_eval: LmEvalSeen | None = None  # None too where nothing is to be evaluated
    desk: DeskSeen | None = None
    has_hub_token: bool = False
    problems: Mapping[str, str] = field(default_factory=dict)  # part -> why it could not be looked at


class State(StrEnum):
    """The result of a check, the best first."""

    OK = "ok"
    OPTIONAL = "optional"  # not there, and nothing of this run needs it
    UNKNOWN = "unknown"
    MISSING = "missing"


@dataclass(frozen=True)
class Result:
    """The answer to a check's question."""

    state: State
    text: str
    todo: str = ""  # what to type


@dataclass(frozen=True)
class Check:
    """One of them."""

    name: str  # what its line begins with: "output folder"
    question: str  # for the page
    find: Callable[[Any, Seen], Result | None]  # of the source and all; None: it has nothing to do with what is at hand
    needs: str = "tables"  # the part of `Seen` that it is about, without which it is blind


class PrintedCheck(Struct, frozen=True, kw_only=True):
    """One check's answer."""

    name: Annotated[str, Meta(description="The check.")]
    state: Annotated[
        State,
        Meta(
            description="`ok`, `missing`, `unknown`: cannot be checked from here, `optional`: missing and not needed."
        ),
    ]
    text: Annotated[str, Meta(description="Result of the check.")]
    todo: Annotated[str, Meta(description="The command to type; empty if none is needed.")]


def examined(checks: Iterable[Check], seen: Seen) -> list[PrintedCheck]:
    """Return the answers, the worst last. Only the first check of a source that could not be read reports why."""
    found: list[PrintedCheck] = []
    unread = dict(seen.problems)
    for check in checks:
        source, result = getattr(seen, check.needs), None
        if check.needs in seen.problems:
            why = unread.pop(check.needs, None)
            result = None if why is None else Result(State.UNKNOWN, why)
        elif source is not None:
            result = check.find(source, seen)
        if result is not None:
            found.append(PrintedCheck(name=check.name, state=result.state, text=result.text, todo=result.todo))
    return sorted(found, key=lambda one: list(State).index(one.state))


def is_well(answers: Iterable[PrintedCheck]) -> bool:
    """Return whether nothing is missing or unknown."""
    return all(one.state in (State.OK, State.OPTIONAL) for one in answers)


def ok(text: str) -> Result:
    """All is well."""
    return Result(State.OK, text)


def optional(text: str, todo: str = "") -> Result:
    """Return the result for a thing that is missing and not needed."""
    return Result(State.OPTIONAL, text, todo)


def unknown(text: str, todo: str = "") -> Result:
    """Return the result for a thing that cannot be checked from here."""
    return Result(State.UNKNOWN, text, todo)


def missing(text: str, todo: str) -> Result:
    """Return the result for a thing that is missing and needed."""
    return Result(State.MISSING, text, todo)
