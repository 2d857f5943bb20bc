"""Background commands on record: one folder for each, of this account, with its record, progress and output.

A command is on record before Slurm is asked for its job, and each further job before that one is; so an answer that
gets lost leaves nothing that could run twice. A process that changes one holds the lock of all of them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import locked, make_folder, read_state, remove, write_state
from opsctl.core.files.trusted import names_of
from opsctl.core.timestamps import now
from opsctl.run.config.locate import account_state_folder
from opsctl.run.render.background import WORK_FOLDER
from opsctl.run.state.background_progress import CommandProgress
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.job_match import Sent, sent_about
from trainer.formats.json_text import Moment

#: The states of a command. "stopped": unfinished, and no job continues it; "lost": its end is unknown.
CommandState = Literal["open", "done", "failed", "cancelled", "stopped", "lost"]
#: Ended commands that are kept.
KEPT = 100
#: Of what is written here.
SCHEMA_VERSION = 1
_MOST = 10_000
_LOCK_WAIT_S = 20.0
_NAME = re.compile(r"e[0-9a-f]{7}")


class CommandJob(msgspec.Struct, frozen=True, kw_only=True):
    """One of a background command's Slurm jobs."""

    asked_at: Moment
    job_id: Annotated[int, msgspec.Meta(ge=0, le=2**32)] = 0  # Slurm's; 0: not known (yet)
    began_at: Moment | None = None
    starts: int = 0  # how often Slurm has started it: again after a lost node
    host: str = ""  # where it was at work last
    ended_at: Moment | None = None
    how: str = ""  # how it ended, in words


class BackgroundCommand(msgspec.Struct, frozen=True, kw_only=True):
    """`errand.json`: a command that is carried out by Slurm jobs, one after the other."""

    name: Annotated[str, msgspec.Meta(pattern=r"\Ae[0-9a-f]{7}\Z")] = msgspec.field(name="errand")
    words: tuple[str, ...]  # the command line, without `opsctl` and what made it a job
    folder: str  # where it was typed
    umask: int
    cluster: Cluster
    options: tuple[tuple[str, str], ...]  # of sbatch, as it was asked for
    limit_s: int
    goes_on: bool  # whether another start continues where this one was; else it begins again
    run: str = ""  # the name of the run that it is for, if any
    asked_at: Moment
    jobs: tuple[CommandJob, ...]  # never empty; the last one counts
    in_vain: int = 0  # starts in a row that reached their limit and reported no progress
    state: CommandState = "open"
    ended_at: Moment | None = None
    exit_code: int | None = None
    detail: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def is_open(self) -> bool:
        """Return whether it may still do something."""
        return self.state == "open"

    @property
    def is_newer(self) -> bool:
        """Return whether a newer opsctl wrote it: writing it back would drop the fields that this version lacks."""
        return self.schema_version > SCHEMA_VERSION

    @property
    def last(self) -> CommandJob:
        """The job that counts."""
        return self.jobs[-1]

    @property
    def comment(self) -> str:
        """The Slurm comment of its last job, by which that is found again."""
        return f"{comment_of(self.name)} job={len(self.jobs)}"

    @property
    def job_name(self) -> str:
        """The name of its Slurm jobs."""
        return "-".join(["opsctl", *(word for word in self.words[:2] if word.replace("-", "").isalnum())])

    @property
    def sent(self) -> Sent:
        """The record of its last job. Slurm may have submitted it again since, after a lost node."""
        earliest, _ = sent_about(self.last.asked_at)
        return Sent(self.comment, account_name(), self.job_name, WORK_FOLDER, earliest)

    def with_last(self, **changes: object) -> BackgroundCommand:
        """Return a copy with its last job changed."""
        last = msgspec.structs.replace(self.last, **changes)
        return msgspec.structs.replace(self, jobs=(*self.jobs[:-1], last))

    def ended(
        self, state: CommandState, detail: str = "", exit_code: int | None = None, how: str = ""
    ) -> BackgroundCommand:
        """Return a copy that ended now."""
        at = now()
        of_job = self.with_last(ended_at=at, how=how or detail)
        return msgspec.structs.replace(of_job, state=state, ended_at=at, exit_code=exit_code, detail=detail)


def comment_of(name: str) -> str:
    """Return the words that the Slurm comments of all its jobs begin with."""
    return f"opsctl errand={name}"


def new_name() -> str:
    """Return a name that cannot be a job id: e and seven hexadecimal digits."""
    return f"e{os.urandom(4).hex()[1:]}"


@dataclass(frozen=True)
class CommandRecords:
    """All commands of an account."""

    root: Path

    @property
    def lock(self) -> Path:
        """Held while one changes, and while a new one is handed to Slurm."""
        return self.root / "lock"

    def record(self, name: str) -> Path:
        """Return the path of its BackgroundCommand."""
        return self.root / name / "errand.json"

    def progress(self, name: str) -> Path:
        """Return the path of its CommandProgress: the progress reported by the running start."""
        return self.root / name / "progress.json"

    def output(self, name: str) -> Path:
        """Return the path of its output, that of all its jobs in order."""
        return self.root / name / "output.txt"

    @contextlib.contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Hold the lock; see `state_files.locked`."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self.root, self.lock, _LOCK_WAIT_S, what):
            yield

    def write(self, command: BackgroundCommand) -> None:
        """Put it on record as it is now. Raises OSError, OpsctlError for one that a newer opsctl wrote."""
        if command.is_newer:
            raise OpsctlError(f"{command.name} was written by a newer opsctl: use that one")
        make_folder(self.root, self.record(command.name).parent)
        write_state(self.root, self.record(command.name), command)

    def read(self, name: str) -> BackgroundCommand | None:
        """Return the command of that name; None if there is none or it cannot be read."""
        return read_state(self.root, self.record(name), BackgroundCommand) if _NAME.fullmatch(name) else None

    def all(self) -> list[BackgroundCommand]:
        """Every command on record, in the order in which they were asked for. Raises OSError."""
        found = (self.read(name) for name in names_of(self.root, self.root, _MOST)) if self.root.is_dir() else ()
        return sorted((one for one in found if one is not None), key=lambda one: one.asked_at)

    def done(self, name: str) -> int:
        """Return how much the current or last start has reported as done; 0 if it reported nothing."""
        found = read_state(self.root, self.progress(name), CommandProgress)
        return found.done if found else 0

    def find(self, chosen: str) -> BackgroundCommand:
        """Return the command that `chosen` means: its name or the beginning of it, or its job's id. Raises
        OpsctlError.
        """
        known = self.all()
        job_id = int(chosen) if chosen.isdecimal() and chosen.isascii() else 0
        if job_id:
            found = [one for one in known if any(job.job_id == job_id for job in one.jobs)][-1:]
        else:
            found = [one for one in known if chosen and one.name.startswith(chosen)]
        if len(found) == 1:
            return found[0]
        which = f"more than one begins with {chosen}" if found else f"no command {chosen!r}"
        raise OpsctlError(f"{which}: opsctl jobs --all lists them")

    def forget(self, name: str) -> None:
        """Remove all that is on record of it; what cannot be removed stays."""
        with contextlib.suppress(OSError):
            for path in (self.output(name), self.progress(name), self.record(name)):
                remove(self.root, path)
            self.record(name).parent.rmdir()

    def forget_old(self) -> None:
        """Remove what is more than KEPT ended ones."""
        for one in [one for one in self.all() if not one.is_open][:-KEPT]:
            self.forget(one.name)


def command_records(environment: Mapping[str, str] = os.environ) -> CommandRecords:
    """Those of this account."""
    return CommandRecords(account_state_folder(environment) / "errands")
