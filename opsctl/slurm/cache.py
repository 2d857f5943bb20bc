"""One cache of Slurm's answers.

`CachedSlurm` answers each question from a store, else from Slurm:

* a command that checks many runs asks each question once: a store in memory, without an age limit;
* all processes of one account on a host share answers: a store in a folder (`cached_client`), which only the account
  can write. Several `status --watch` and a shell prompt are then one question to the controller. A damaged answer
  counts as none.

Commands that decide (submit, cancel, refill, jobs) never read shared answers. A check, whose exit code or alert people
rely on, asks again. A command that may have changed the queue makes all earlier answers invalid (`forget`).
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from opsctl.core.errors import SlurmError, SlurmMissing, SlurmUnasked, SlurmUnreachable
from opsctl.core.files.state_files import read_text, write_atomically
from opsctl.core.files.trusted import cache_folder, cache_place, is_the_accounts, open_file
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import INTERACTIVE_DEADLINE_S, SlurmReader, chosen_jobs
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.nodes import Node, expand_nodes
from opsctl.slurm.types import Job
from trainer.formats.file_lock import lock_within

T = TypeVar("T")

#: Seconds for which the shared queue is valid, set by the variable; 0: nothing is shared.
AGE_VARIABLE = "OPSCTL_ANSWERS_AGE"
#: For live screens, however many an account has: with the nodes they ask at most twice in a minute.
LIVE_AGE_S = 60.0
#: For a command that prints once: the user's last change must show.
ONCE_AGE_S = 5.0
#: The list of nodes is valid this many times as long as the queue.
_NODES_TIMES = 3
#: The configuration changes with slurm.conf.
CONFIGURATION_AGE_S = 86400.0
#: A shared outage: ten processes ask once, but none of them believes it for longer. A live screen asks twice a minute.
ONCE_ERROR_AGE_S, LIVE_ERROR_AGE_S = 5.0, 30.0
_CHANGE = "changed"
_CHANGED_BY_USERS = ("queue", "nodes")
_ERRORS: dict[str, type[SlurmError]] = {
    one.__name__: one for one in (SlurmMissing, SlurmUnasked, SlurmUnreachable, SlurmError)
}


class Answer(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One answer as it is stored."""

    asked_at_s: float  # since the epoch, before Slurm was asked
    asked_after_s: float  # the same by a clock that is never set: since the host started
    since_change: str  # the last change of the queue before it
    value: T | None = None
    error: str = ""  # the class of what was raised instead
    words: str = ""

    def age_s(self) -> float | None:
        """Return its age; None where the clocks disagree: one was set, or the host has restarted."""
        by_clock, by_start = time.time() - self.asked_at_s, _since_start_s() - self.asked_after_s
        return by_start if by_start >= 0 and abs(by_clock - by_start) < 1.0 else None


class MemoryStore:
    """The answers of one object."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer[Any]] = {}

    def read(self, name: str, kind: Any) -> Answer[Any] | None:
        """Return the stored answer `name` of type `kind`, if there is one that can be read."""
        return self._answers.get(name)

    def write(self, name: str, answer: Answer[Any]) -> None:
        """Replace the answer `name`, as far as this is possible."""
        self._answers[name] = answer

    def lock(self, name: str) -> AbstractContextManager[Any]:
        """Hold off other users of the store that want the same answer."""
        return contextlib.nullcontext()

    def last_change(self) -> str:
        """Return a mark of the last change of the queue."""
        return ""


class SharedStore(MemoryStore):
    """A store in a folder, for all processes of one account on a host."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def read(self, name: str, kind: Any) -> Answer[Any] | None:
        """See MemoryStore."""
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            text = read_text(self._folder, self._folder / f"{name}.json")
            found: Answer[Any] | None = msgspec.json.decode(text, type=kind) if text else None
            return found
        return None

    def write(self, name: str, answer: Answer[Any]) -> None:
        """See MemoryStore."""
        with contextlib.suppress(OSError):  # a full disk: each process asks for itself
            write_atomically(self._folder, self._folder / f"{name}.json", msgspec.json.encode(answer), mode=0o600)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Wait while another process asks the same, for as long as an interactive command may take."""
        try:
            fd = open_file(self._folder, self._folder / f"{name}.lock", os.O_RDWR | os.O_CREAT)
        except OSError:
            yield
            return
        try:
            lock_within(fd, INTERACTIVE_DEADLINE_S)
            yield
        finally:
            os.close(fd)

    def last_change(self) -> str:
        """See MemoryStore. Inode and time of a file identify the last change."""
        try:
            found = (self._folder.parent / _CHANGE).stat()
        except OSError:
            return ""
        return f"{found.st_ino}.{found.st_mtime_ns}"


class CachedSlurm:
    """See SlurmReader. An error that Slurm gave is an answer too.

    make: a client for each question, so that each has its own deadline. Ages: the default never asks a question twice.
    shares_errors: False for a caller with less patience than others.
    """

    def __init__(
        self,
        make: Callable[[], SlurmReader],
        max_age_s: float = math.inf,
        error_age_s: float = math.inf,
        store: MemoryStore | None = None,
        shares_errors: bool = True,
    ) -> None:
        self._make, self._max_age_s, self._error_age_s = make, max_age_s, error_age_s
        self._store, self._shares_errors = store or MemoryStore(), shares_errors
        self.queue_age_s = 0.0  # of the last answer about jobs

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        """Return the jobs of all users, or those of the answer about all that are wanted."""
        found, self.queue_age_s = self._answer("queue", Answer[list[Job]], self._max_age_s, lambda one: one.jobs())
        return chosen_jobs(found, None if users is None else set(users), None if job_ids is None else set(job_ids))

    def nodes(self, folded: str | None = None) -> list[Node]:
        """Return the nodes of the list, from the answer about all nodes."""
        found, _ = self._answer("nodes", Answer[list[Node]], _NODES_TIMES * self._max_age_s, lambda one: one.nodes())
        names = None if folded is None else set(expand_nodes(folded))
        return [node for node in found if names is None or node.name in names]

    def hides_others_jobs(self) -> bool:
        """Return Slurm's answer, which may be a day old."""
        return self._answer("hides", Answer[bool], self._day_s, lambda one: one.hides_others_jobs())[0]

    def configuration(self) -> dict[str, str]:
        """Return Slurm's answer, which may be a day old."""
        return self._answer("configuration", Answer[dict[str, str]], self._day_s, lambda one: one.configuration())[0]

    @property
    def _day_s(self) -> float:
        return max(CONFIGURATION_AGE_S, self._max_age_s)

    def _answer(self, name: str, kind: Any, max_age_s: float, ask: Callable[[SlurmReader], T]) -> tuple[T, float]:
        """Return the answer and its age in seconds. Raises the error that Slurm gave."""
        began_s = _since_start_s()
        found = self._valid(name, kind, max_age_s)
        if found is None:
            with self._store.lock(name):
                # Another process that held the lock has asked after this call began: that is as fresh as asking again.
                found = self._valid(name, kind, max(max_age_s, _since_start_s() - began_s)) or self._asked(name, ask)
        if found.error or found.value is None:
            raise _ERRORS.get(found.error, SlurmError)(found.words)
        return found.value, found.age_s() or 0.0

    def _valid(self, name: str, kind: Any, max_age_s: float) -> Answer[Any] | None:
        found = self._store.read(name, kind)
        if found is None or (name in _CHANGED_BY_USERS and found.since_change != self._store.last_change()):
            return None
        age_s = found.age_s()
        limit_s = min(max_age_s, self._error_age_s) if found.error else max_age_s
        return found if age_s is not None and age_s <= limit_s and (found.error or found.value is not None) else None

    def _asked(self, name: str, ask: Callable[[SlurmReader], Any]) -> Answer[Any]:
        """Ask Slurm and store what it answers. The answer of a client that is a cache itself may be old already."""
        at_s, after_s, change, client = time.time(), _since_start_s(), self._store.last_change(), self._make()
        value, error, words, age_s = None, "", "", 0.0
        try:
            value = ask(client)
            age_s = float(getattr(client, "queue_age_s", 0.0)) if name == "queue" else 0.0
        except SlurmError as failed:
            error = next(name for name, one in _ERRORS.items() if isinstance(failed, one))
            words = str(failed)
        answer = Answer[Any](
            asked_at_s=at_s - age_s,
            asked_after_s=after_s - age_s,
            since_change=change,
            value=value,
            error=error,
            words=words,
        )
        if not error or self._shares_errors:
            self._store.write(name, answer)
        return answer


def cached_client(
    cluster: Cluster,
    is_fresh: bool = False,
    environment: Mapping[str, str] = os.environ,
    deadline_s: float = INTERACTIVE_DEADLINE_S,
    is_live: bool = False,
) -> SlurmReader:
    """Return a client of `cluster` for a command that only reads, with shared answers.

    is_fresh: ask Slurm now and share its answer; every check does this. is_live: for a screen that keeps its client;
    an answer may be a minute old, also where nothing is shared. deadline_s: with less time than others have, an outage
    is not shared.
    """
    max_age_s, error_age_s = (LIVE_AGE_S, LIVE_ERROR_AGE_S) if is_live else (ONCE_AGE_S, ONCE_ERROR_AGE_S)
    shared_s = max_age_s
    with contextlib.suppress(ValueError):
        shared_s = float(environment.get(AGE_VARIABLE) or max_age_s)
    folder = None if cluster.out_of_bounds or shared_s <= 0 else _folder_of(cluster, environment)
    make = partial(client_for, cluster, deadline_s)
    if folder is not None:
        most_s = 0.0 if is_fresh and not is_live else shared_s
        shares_errors = deadline_s >= INTERACTIVE_DEADLINE_S
        return CachedSlurm(make, most_s, error_age_s, SharedStore(folder), shares_errors)
    return CachedSlurm(make, max_age_s, error_age_s) if is_live else make()


def forget(environment: Mapping[str, str] = os.environ) -> None:
    """Make all earlier shared answers invalid: the caller has changed something. Never an error."""
    folder = cache_place("answers", environment)
    with contextlib.suppress(OSError):
        if folder.is_dir() and is_the_accounts(folder):
            write_atomically(folder, folder / _CHANGE, "", mode=0o600)


def _folder_of(cluster: Cluster, environment: Mapping[str, str]) -> Path | None:
    """Return the folder of this host's answers from `cluster`; None where others could write there."""
    asked = cluster.environment()
    which = (asked.get("SLURM_CONF", ""), shutil.which("squeue", path=asked.get("PATH")) or "")
    host = f"{socket.gethostname()}-{hashlib.sha256(repr(which).encode()).hexdigest()[:16]}"
    return cache_folder("answers", host, environment)


def _since_start_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
