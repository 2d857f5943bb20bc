"""Requests of group members to the owner's jobs, and the record of their results.

A request is a file `.opsctl/requests/ID.json`, made complete under a random name. The owner of the opened file is the
requesting user. Its content is an action's name and numbers, never a command or a path. The process that carries it out
first takes it, by a rename into `taken/`, which only one of several can do, and checks what it took. Then a line is
added to `.opsctl/audit.jsonl`, and the file is removed. A process that takes requests holds a lock on a file of its own
as long as it lives, so that the unfinished work of a dead one is recognised.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from opsctl.core.account import account_name
from opsctl.core.files.state_files import append_state, make_folder, parsed, read_lines, write_state
from opsctl.core.files.trusted import Keepers, Untrusted, create_file, listed_within, open_within, opened_folder
from opsctl.core.output import printable
from opsctl.core.timestamps import now
from opsctl.run.config.paths import RunPaths
from trainer.formats.file_lock import is_locked, lock_within
from trainer.formats.json_text import Moment

SCHEMA_VERSION = 1
#: A request is some hundred bytes.
_LARGEST_BYTES = 64 * 1024
#: Longest word of a request that is kept, in characters.
LONGEST_WORDS = 500
#: More than any honest use needs.
MOST_TASKS = 1000
_JOB = re.compile(r"\d+(_\d+)?", re.ASCII)
_NAME = re.compile(r"(?P<id>[\w-]{1,64})\.json", re.ASCII)
_TAKEN = re.compile(r"(?P<id>[\w-]{1,64})\.(?P<mark>[0-9a-f]{16})\.json", re.ASCII)


class Action(StrEnum):
    """The actions that can be requested."""

    SAVE = "save"
    STOP = "stop"
    REQUEUE = "requeue"
    STACKS = "stacks"
    CANCEL_QUEUED = "cancel-queued"
    HOLD_QUEUED = "hold-queued"
    RELEASE_QUEUED = "release-queued"
    EXTEND_CHAIN = "extend-chain"


#: What one job is asked for; the others are about what its owner has in the queue.
OF_A_JOB = frozenset({Action.SAVE, Action.STOP, Action.REQUEUE, Action.STACKS})


class Outcome(StrEnum):
    """The result of a request."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"
    TOO_LATE = "too-late"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a request file. The requesting command resolved its target, which is checked again later."""

    schema_version: int = SCHEMA_VERSION
    action: str
    why: str = ""
    host: str = ""  # where it was asked, as the asker says
    owner: str = ""  # the account whose jobs are meant
    job: str = ""  # the job that is meant, as squeue shows it; empty: what the owner has queued
    attempt: str = ""  # its attempt; empty where it had none yet: ids of jobs start over
    chains: tuple[int, ...] = ()  # the arrays that were in the queue
    tasks: int | None = None  # to extend by
    within_s: int | None = None  # until a trainer that does not leave is ended
    queued_too: bool = False


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `.opsctl/audit.jsonl`: a request and its result."""

    id: Annotated[str, Meta(description="The request's own.")]
    action: Annotated[str, Meta(description="The requested action; empty if it could not be read.")] = ""
    asked_by: Annotated[str, Meta(description="Owner of the request file, who made the request.")] = ""
    uid: Annotated[int | None, Meta(description="That account's number.")] = None
    host: Annotated[str, Meta(description="Host on which it was made, as recorded by its author.")] = ""
    asked_at: Annotated[Moment | None, Meta(description="When the file last changed, by the file server's clock.")] = (
        None
    )
    why: Annotated[str, Meta(description="Why, in the asker's words.")] = ""
    owner: Annotated[str, Meta(description="Owner of the jobs that it is about.")] = ""
    job: Annotated[str, Meta(description="The job that it is about, as squeue shows it; empty for queued jobs.")] = ""
    tasks: Annotated[int | None, Meta(description="Tasks to extend the chain by.")] = None
    by: Annotated[str, Meta(description="Account, host and job that carried it out.")] = ""
    at: Annotated[Moment | None, Meta(description="When it was answered, by that host's clock.")] = None
    outcome: Annotated[str, Meta(description="`done`, `refused`, `failed` or `too-late`.")] = ""
    words: Annotated[str, Meta(description="The result, in a sentence.")] = ""


class PrintedRequest(Audited, frozen=True, kw_only=True):
    """A request, answered or not."""

    state: Annotated[
        Literal["waiting", "begun", "answered"], Meta(description="True if a job has taken it, or answered it.")
    ]


@dataclass(frozen=True)
class Asked:
    """A request as it is stored."""

    id: str
    uid: int
    at: datetime  # when it last changed; only the file server sets this
    request: Request | None  # None where it cannot be read
    problem: str = ""  # why it counts for nothing; empty when it counts
    taken_by: str = ""  # the mark of the process that has it; empty while it waits

    @property
    def asker(self) -> str:
        """The account whose file it is."""
        return account_name(self.uid)


def ask(paths: RunPaths, request: Request) -> str:
    """Leave `request` for who carries it out, writable by the asker alone; returns its id. Raises OSError."""
    make_folder(paths.output, paths.requests)
    request_id = secrets.token_hex(8)
    write_state(paths.output, paths.requests / f"{request_id}.json", request, mode=0o640)
    return request_id


def waiting(paths: RunPaths) -> list[str]:
    """Return the ids of requests that no process has taken. One listing of one folder; raises OSError."""
    try:
        with opened_folder(paths.output, paths.requests) as (folder, _):
            return _names(folder)
    except FileNotFoundError:
        return []


def look(paths: RunPaths, request_id: str) -> Asked | None:
    """Return a request that no process has taken; None if it is gone. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), opened_folder(paths.output, paths.requests) as (folder, keepers):
        return judged(folder, keepers, paths.requests / f"{request_id}.json", request_id, "")
    return None


def taken(paths: RunPaths) -> list[Asked]:
    """Return the requests that were taken and not answered. Raises OSError."""
    found = []
    place = taken_folder(paths)
    with contextlib.suppress(FileNotFoundError), opened_folder(paths.output, place) as (folder, keepers):
        for name in listed_within(folder):
            match = _TAKEN.fullmatch(name)
            asked = match and judged(folder, keepers, place / name, match["id"], match["mark"])
            if asked:
                found.append(asked)
    return found


def audited(paths: RunPaths) -> list[Audited]:
    """Return the results of requests so far, oldest first. Raises OSError if they cannot be read."""
    return read_lines(paths.output, paths.audit, Audited)


def answer_to(paths: RunPaths, request_id: str) -> Audited | None:
    """Return the result of one request; None while there is none. Raises OSError."""
    return next((line for line in audited(paths) if line.id == request_id), None)


def printed(paths: RunPaths) -> list[PrintedRequest]:
    """All requests, those that were answered first. Raises OSError."""
    answered = [PrintedRequest(**msgspec.structs.asdict(line), state="answered") for line in audited(paths)]
    known = {line.id for line in answered}
    begun = [one for one in taken(paths) if one.id not in known]
    waits = [one for name in waiting(paths) if (one := look(paths, name)) is not None]
    for one in sorted((*begun, *waits), key=lambda one: one.at):
        fields = {**msgspec.structs.asdict(told_of(one)), "words": one.problem}
        answered.append(PrintedRequest(**fields, state="begun" if one.taken_by else "waiting"))
    return answered


def told_of(asked: Asked) -> Audited:
    """Return the record of a request that has no result yet."""
    said = asked.request or Request(action="")
    return Audited(
        id=asked.id,
        action=in_a_line(said.action),
        asked_by=asked.asker,
        uid=asked.uid,
        host=in_a_line(said.host),
        asked_at=asked.at,
        why=in_a_line(said.why),
        owner=in_a_line(said.owner),
        job=in_a_line(said.job),
        tasks=said.tasks,
    )


def problem_of(request: Request) -> str:
    """Return why this cannot be carried out for any user; empty if it can. Pure."""
    if request.schema_version > SCHEMA_VERSION:
        return f"a newer opsctl wrote it (version {request.schema_version}): the job's is older"
    if request.action not in set(Action):
        return f"no such request: {printable(request.action[:40])}; there are {', '.join(Action)}"
    if request.action in OF_A_JOB and not _JOB.fullmatch(request.job):
        return "it names no job"
    if request.tasks is not None and not 1 <= request.tasks <= MOST_TASKS:
        return f"a chain is extended by 1 to {MOST_TASKS} tasks"
    if request.within_s is not None and request.within_s < 0:
        return "there is no time to leave within"
    return ""


def taken_folder(paths: RunPaths) -> Path:
    """Return the folder of taken requests."""
    return paths.requests / "taken"


def _names(folder: int) -> list[str]:
    return [match["id"] for match in map(_NAME.fullmatch, listed_within(folder)) if match]


def changed_at(found: os.stat_result) -> datetime:
    """Return when a file last changed, according to its file server. Unlike the mtime, no user can set this."""
    return datetime.fromtimestamp(found.st_ctime, UTC).astimezone().replace(microsecond=0)


def judged(folder: int, keepers: Keepers, path: Path, request_id: str, mark: str) -> Asked | None:
    """Return the stored request, trusted as far as its owner may be; None if there is none. Raises OSError."""
    try:
        there = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        fd = open_within(folder, keepers, path)
    except FileNotFoundError:
        return None
    except (Untrusted, PermissionError) as error:
        why = error.strerror if isinstance(error, Untrusted) else "cannot be read by who is to carry it out"
        return Asked(request_id, there.st_uid, changed_at(there), None, f"the request {why}", mark)
    try:
        found, data = os.fstat(fd), os.read(fd, _LARGEST_BYTES + 1)
    finally:
        os.close(fd)
    request, problem = _read(data)
    return Asked(request_id, found.st_uid, changed_at(found), request, problem, mark)


def _read(data: bytes) -> tuple[Request | None, str]:
    if len(data) > _LARGEST_BYTES:
        return None, "the request is longer than any"
    try:
        request = parsed(data, Request)
    except ValueError:
        return None, "the request cannot be read: it is cut off, or not one"
    return request, problem_of(request)


def in_a_line(text: str) -> str:
    """Return a user's words as one printable line that fits a screen."""
    cut = text if len(text) <= LONGEST_WORDS else text[: LONGEST_WORDS - 3] + "..."
    return printable(cut, " ").strip()


class Carrier:
    """One process that takes requests and answers them, under a mark that shows that it lives. One thread uses it."""

    def __init__(self, paths: RunPaths, by: str) -> None:
        """by: who that is, for the record."""
        self._paths, self.by = paths, by
        self.mark = secrets.token_hex(8)
        self._lock: int | None = None

    def take(self, request_id: str) -> Asked | None:
        """Take this request, as it is now; None if another process was faster. Raises OSError."""
        place = taken_folder(self._paths)
        make_folder(self._paths.output, place)
        name = f"{request_id}.{self.mark}.json"
        with (
            opened_folder(self._paths.output, self._paths.requests) as (waits, _),
            opened_folder(self._paths.output, place) as (folder, keepers),
        ):
            if self._lock is None:
                self._lock = create_file(folder, place / _sign_of_life(self.mark))
                lock_within(self._lock, 0)
            try:
                before = os.stat(f"{request_id}.json", dir_fd=waits, follow_symlinks=False)
                os.rename(f"{request_id}.json", name, src_dir_fd=waits, dst_dir_fd=folder)
            except FileNotFoundError:
                return None
            found = judged(folder, keepers, place / name, request_id, self.mark)
        # A rename counts as a change: when it was asked is what was seen before.
        return found and replace(found, at=changed_at(before))

    def answer(self, asked: Asked, outcome: Outcome, words: str) -> Audited:
        """Record the outcome of a taken request. If the disk takes no line, `left_by_the_dead` answers it later."""
        answer = {"by": self.by, "at": now().replace(microsecond=0), "outcome": str(outcome), "words": words}
        line = msgspec.structs.replace(told_of(asked), **answer)
        with contextlib.suppress(OSError):
            append_state(self._paths.output, self._paths.audit, line)
            with opened_folder(self._paths.output, taken_folder(self._paths)) as (folder, _):
                _remove(folder, f"{asked.id}.{asked.taken_by}.json")
        return line

    def left_by_the_dead(self) -> list[Asked]:
        """Return requests that ended processes had taken and not answered; none without locks. Raises OSError."""
        found = [one for one in taken(self._paths) if one.taken_by != self.mark]
        if not found:
            return []
        answered = {line.id for line in audited(self._paths)}
        with opened_folder(self._paths.output, taken_folder(self._paths)) as (folder, keepers):
            dead = {one.taken_by for one in found if not self._lives(folder, keepers, one.taken_by)}
            for one in found:
                if one.taken_by in dead and one.id in answered:
                    _remove(folder, f"{one.id}.{one.taken_by}.json")
        return [one for one in found if one.taken_by in dead and one.id not in answered]

    def close(self) -> None:
        """No more requests are taken."""
        if self._lock is not None:
            with (
                contextlib.suppress(OSError),
                opened_folder(self._paths.output, taken_folder(self._paths)) as (folder, _),
            ):
                os.unlink(_sign_of_life(self.mark), dir_fd=folder)
            os.close(self._lock)
            self._lock = None

    def _lives(self, folder: int, keepers: Keepers, mark: str) -> bool:
        place = taken_folder(self._paths)
        try:
            fd = open_within(folder, keepers, place / _sign_of_life(mark))
        except FileNotFoundError:
            return False
        try:
            return is_locked(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def carrying(paths: RunPaths, by: str) -> Iterator[Carrier]:
    """Provide a carrier inside the block."""
    carrier = Carrier(paths, by)
    try:
        yield carrier
    finally:
        carrier.close()


def _sign_of_life(mark: str) -> str:
    return f".{mark}.alive"


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            os.rmdir(name, dir_fd=folder)
