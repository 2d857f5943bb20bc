"""Sending what is new of a run, one commit after another while there is time; one process at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import locked, make_folder, read_text
from opsctl.run.config.file_kinds import CHECKPOINTS, KINDS_OF_FILES
from opsctl.run.config.paths import RunPaths
from opsctl.transfer.hub.hub_errors import RetryPolicy
from opsctl.transfer.hub.ledger import compact_ledger
from opsctl.transfer.hub.ownership import Claimed, claim, note_of
from opsctl.transfer.hub.plan import Batch, DueCheckpoint, Plan, plan_sync
from opsctl.transfer.hub.repository import MAIN, open_repository
from opsctl.transfer.hub.settings import HubSettings
from opsctl.transfer.hub.upload import Outcome, Sender, send_checkpoint

#: Files, and checkpoints, which take a night, have a lock each.
FILES = "files"


class Busy(OpsctlError):
    """Another process is sending, and was until there was no time left; the text names it."""


@contextlib.contextmanager
def only_sender(paths: RunPaths, lane: str, retry: RetryPolicy) -> Iterator[None]:
    """Wait for another process that sends, then be the only one. lane: FILES or CHECKPOINTS. Raises Busy, OSError.

    Two at once, where locks do not reach other hosts, would do no harm: the repository takes commits in turn.
    """
    make_folder(paths.output, paths.hub_uploaders)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(_lock(paths, lane, 0))
        except OpsctlError as other:
            retry.say(f"waiting: {other}")
            try:
                held.enter_context(_lock(paths, lane, retry.left_s))
            except OpsctlError as busy:
                raise Busy(str(busy)) from None
        yield


def current_senders(paths: RunPaths) -> str | None:
    """Return who is sending, for people; None if no process is."""
    found = []
    for lane in (FILES, CHECKPOINTS):
        try:
            with contextlib.suppress(OSError), _lock(paths, lane, 0):
                pass
        except OpsctlError:
            found.append((read_text(paths.output, _lock_file(paths, lane)) or "another process").strip())
    return ", ".join(found) or None


def _lock_file(paths: RunPaths, lane: str) -> Path:
    return paths.hub_uploaders / f"{lane}.lock"


def _lock(paths: RunPaths, lane: str, wait_s: float) -> contextlib.AbstractContextManager[None]:
    return locked(paths.output, _lock_file(paths, lane), wait_s, "send to the hub")


@dataclass
class Syncing:
    """One run's sync."""

    paths: RunPaths
    name: str
    settings: HubSettings
    retry: RetryPolicy

    def run(self, kinds: Sequence[str]) -> Outcome:
        """Send what is new: files, then checkpoints. Where nothing is, the hub is not asked and nothing is locked.

        Raises Busy where another process sends for all the time that there is, OSError. What could not be sent is in
        the outcome.
        """
        outcome = Outcome()
        for lane, of_lane in ((FILES, KINDS_OF_FILES), (CHECKPOINTS, (CHECKPOINTS,))):
            wanted = [kind for kind in of_lane if kind in kinds]
            plan = plan_sync(self.paths, self.settings, wanted)
            if not plan.is_empty:
                with only_sender(self.paths, lane, self.retry):
                    plan = plan_sync(self.paths, self.settings, wanted)  # another process may have sent it until now
                    self._send_all(plan, Sender(self.paths, self.retry, outcome))
                    if lane == FILES:  # only while no other process adds to the ledger, which may stay long
                        with contextlib.suppress(OSError, OpsctlError), _lock(self.paths, CHECKPOINTS, 0):
                            compact_ledger(self.paths)
            outcome.notes += plan.notes
            outcome.left += plan.unseen
        return outcome

    def _send_all(self, plan: Plan, sender: Sender) -> None:
        """Send everything in turn. A failure in one repository keeps nothing from another."""
        stuck: set[str] = set()
        begun: dict[str, Claimed] = {}
        steps: list[tuple[str, str, Callable[[Claimed], None]]] = [
            *((one.repo, one.words, partial(self._send, sender, one)) for one in plan.batches),
            *((one.repo, one.name, partial(self._send_checkpoint, sender, one)) for one in plan.checkpoints),
        ]
        for repo, what, step in steps:
            problem = ""
            if repo in stuck:
                problem = "as before it"
            else:
                try:
                    if repo not in begun:
                        begun[repo] = self._begun(repo)
                    step(begun[repo])
                except OpsctlError as error:
                    problem = str(error)
                    stuck.add(repo)
                except OSError as error:
                    problem = file_problem(error)
            if problem:
                sender.outcome.left.append(f"{what} to {repo}: {problem}")

    def _begun(self, repo: str) -> Claimed:
        own = note_of(self.paths, self.name, self.settings)
        remote = open_repository(self.settings, repo, self.retry)
        remote.begin(MAIN, self.settings.table.private)
        return claim(remote, own)

    def _send(self, sender: Sender, batch: Batch, to: Claimed) -> None:
        with to.note() as note:
            sender.send(to.remote, batch, f"{self.name}: {batch.words}", note)

    def _send_checkpoint(self, sender: Sender, due: DueCheckpoint, to: Claimed) -> None:
        with to.note() as note:
            if note:
                to.remote.commit(MAIN, note, [], f"{self.name}: whose this is")
        send_checkpoint(sender, to.remote, due)
