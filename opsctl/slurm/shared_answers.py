"""Slurm's answers for screens, shared by all processes of one account on a host.

Several `status --watch`, and a prompt that shows the queue, are then one question to the controller. What decides
(submit, cancel, refill, jobs) never reads them; a check, whose exit code or alert people rely on, asks again. Every
command that may have changed something lets all forget them. An answer is stored in a folder that nobody else can
write; what is damaged there, or was asked for before such a change, counts as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from opsctl.core.errors import SlurmError, SlurmMissing, SlurmUnasked, SlurmUnreachable
from opsctl.core.files.state_files import read_text, write_atomically
from opsctl.core.files.trusted import cache_folder, cache_place, is_the_accounts, open_file
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import INTERACTIVE_DEADLINE_S, SlurmLooks
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.nodes import Node
from opsctl.slurm.types import Job
from trainer.formats.file_lock import lock_within

T = TypeVar("T")

#: Seconds for which the queue counts, set by the variable; 0: nothing is shared. Nodes count three times as long.
AGE_VARIABLE = "OPSCTL_ANSWERS_AGE"
#: Of a screen that stays: an account asks twice in any minute at most, however many of them it has.
STAYING_AGE_S = 60.0
#: Of a command that prints once: what a person has just done must show.
GLANCE_AGE_S = 5.0
_NODES_TIMES = 3
#: What the controller goes by changes with its configuration file.
CONFIGURATION_AGE_S = 86400.0
#: An outage is not asked about by ten processes at once, and not believed for longer.
ERROR_AGE_S = 5.0
_ERRORS: dict[str, type[SlurmError]] = {one.__name__: one for one in (SlurmUnasked, SlurmUnreachable, SlurmError)}


class Answer(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One answer as it lies in the folder."""

    asked_at_s: float  # since the epoch, before Slurm was asked
    asked_after_s: float  # the same by a clock that nobody sets: since the host started
    since_change: str  # which change of the queue it comes after
    value: T | None = None
    error: str = ""  # the class of what was raised instead
    words: str = ""

    def age_s(self) -> float | None:
        """How old it is; None where the clocks do not agree: one was set, or the host has started anew."""
        by_clock, by_start = time.time() - self.asked_at_s, _since_start_s() - self.asked_after_s
        return by_start if by_start >= 0 and abs(by_clock - by_start) < 1.0 else None


def looking_at(
    cluster: Cluster,
    is_fresh: bool = False,
    environment: Mapping[str, str] = os.environ,
    deadline_s: float = INTERACTIVE_DEADLINE_S,
    stays: bool = False,
) -> SlurmLooks:
    """Return `cluster` for a command that only looks.

    is_fresh: Slurm is asked now, and what it says is shared; every check does. stays: for a screen that looks again and
    again, or for what may be a minute old. deadline_s: a caller that waits for less than others do does not record that
    Slurm did not answer in it.
    """
    client = client_for(cluster, deadline_s)
    age_s = _age_s(environment, STAYING_AGE_S if stays else GLANCE_AGE_S)
    if cluster.out_of_bounds or age_s <= 0:
        return client
    folder = _folder_of(cluster, environment)
    if folder is None:
        return client
    shared = SharedAnswers(client, folder, 0.0 if is_fresh else age_s)
    shared.keeps_errors = deadline_s >= INTERACTIVE_DEADLINE_S
    return shared


def forget(environment: Mapping[str, str] = os.environ) -> None:
    """Let no answer count that was asked for before now: the caller has changed something. Never an error."""
    folder = cache_place("answers", environment)
    with contextlib.suppress(OSError):
        if folder.is_dir() and is_the_accounts(folder):
            write_atomically(folder, folder / _CHANGE, "", mode=0o600)


class SharedAnswers:
    """See SlurmLooks. Of processes that want the same answer one asks, and the others wait for it."""

    def __init__(self, client: SlurmLooks, folder: Path, queue_age_s: float) -> None:
        self._client, self._folder, self._most_s = client, folder, queue_age_s
        self.queue_age_s = 0.0  # of the last answer about jobs
        self.keeps_errors = True

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        """Everybody's; narrowed ones are asked for each time."""
        if users is not None or job_ids is not None:
            return self._client.jobs(users, job_ids)
        found, self.queue_age_s = self._answer("queue", Answer[list[Job]], self._most_s, self._client.jobs)
        return found

    def nodes(self, folded: str | None = None) -> list[Node]:
        """Those of all nodes that are in the list."""
        found, _ = self._answer("nodes", Answer[list[Node]], _NODES_TIMES * self._most_s, self._client.nodes)
        if folded is None:
            return found
        names = set(self.nodes_of(folded))
        return [node for node in found if node.name in names]

    def hides_others_jobs(self) -> bool:
        """As Slurm said within the last day."""
        ask = self._client.hides_others_jobs
        return self._answer("hides", Answer[bool], CONFIGURATION_AGE_S, ask)[0]

    def configuration(self) -> dict[str, str]:
        """As Slurm said within the last day."""
        ask = self._client.configuration
        return self._answer("configuration", Answer[dict[str, str]], CONFIGURATION_AGE_S, ask)[0]

    def nodes_of(self, folded: str) -> list[str]:
        """Asks nobody."""
        return self._client.nodes_of(folded)

    def _answer(self, name: str, kind: Any, most_s: float, ask: Callable[[], T]) -> tuple[T, float]:
        """What Slurm says, and how old that is in seconds. Raises what `ask` does."""
        began_s = _since_start_s()
        path = self._folder / f"{name}.json"
        if (found := self._kept(path, kind, most_s)) is not None:
            return found
        with self._turn(name):
            # Whoever was waited for has asked after this look began: that is as fresh as asking again.
            waited_s = max(most_s, _since_start_s() - began_s)
            if (found := self._kept(path, kind, waited_s)) is not None:
                return found
            return self._asked(path, ask), 0.0

    def _kept(self, path: Path, kind: Any, most_s: float) -> tuple[Any, float] | None:
        """The value that is kept and how old it is; None where there is none that counts. Raises a kept error."""
        try:
            text = read_text(self._folder, path)
            answer: Answer[Any] | None = msgspec.json.decode(text, type=kind) if text else None
        except (OSError, ValueError, msgspec.MsgspecError):
            return None
        if answer is None or answer.since_change != _last_change(self._folder.parent):
            return None
        age_s = answer.age_s()
        if age_s is None:
            return None
        if answer.error:
            if age_s <= min(most_s, ERROR_AGE_S):
                raise _ERRORS.get(answer.error, SlurmError)(answer.words)
            return None
        return (answer.value, age_s) if age_s <= most_s and answer.value is not None else None

    def _asked(self, path: Path, ask: Callable[[], T]) -> T:
        """Ask, and keep the answer, an outage too."""
        answer = Answer[Any](
            asked_at_s=time.time(),
            asked_after_s=_since_start_s(),
            since_change=_last_change(self._folder.parent),
        )
        try:
            value = ask()
        except SlurmMissing:
            raise
        except SlurmError as error:
            if not self.keeps_errors:
                raise
            kind = next(name for name, one in _ERRORS.items() if isinstance(error, one))
            self._keep(path, msgspec.structs.replace(answer, error=kind, words=str(error)))
            raise
        self._keep(path, msgspec.structs.replace(answer, value=value))
        return value

    def _keep(self, path: Path, answer: Answer[Any]) -> None:
        with contextlib.suppress(OSError):  # a full disk: everybody asks for himself
            write_atomically(self._folder, path, msgspec.json.encode(answer), mode=0o600)

    @contextlib.contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        """Wait while another process asks the same; no longer than its own deadline lets it."""
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


#: Its inode and time say which change of the queue was the last.
_CHANGE = "changed"


def _last_change(folder: Path) -> str:
    try:
        found = (folder / _CHANGE).stat()
    except OSError:
        return ""
    return f"{found.st_ino}.{found.st_mtime_ns}"


def _age_s(environment: Mapping[str, str], otherwise: float) -> float:
    with contextlib.suppress(ValueError):
        return float(environment.get(AGE_VARIABLE) or otherwise)
    return otherwise


def _folder_of(cluster: Cluster, environment: Mapping[str, str]) -> Path | None:
    """The folder of this host's answers from `cluster`, made if need be; None where others could write there."""
    asked = cluster.environment()
    which = (asked.get("SLURM_CONF", ""), shutil.which("squeue", path=asked.get("PATH")) or "")
    host = f"{socket.gethostname()}-{hashlib.sha256(repr(which).encode()).hexdigest()[:16]}"
    return cache_folder("answers", host, environment)


def _since_start_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
