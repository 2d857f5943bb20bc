"""Sending what of a run is new: looking, planning, then one commit after another while there is time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.run.config.file_kinds import CHECKPOINTS, KINDS_OF_FILES
from opsctl.run.config.paths import RunPaths
from opsctl.transfer.hub.checkpoint_upload import send_checkpoint
from opsctl.transfer.hub.due import Due, due_checkpoints
from opsctl.transfer.hub.ledger import Place, Sent, compact_ledger, sent_files
from opsctl.transfer.hub.local_files import SeenFile, look_at
from opsctl.transfer.hub.ownership import Claimed, claim, note_of
from opsctl.transfer.hub.plan import Batch, batches, gone_files, is_sent
from opsctl.transfer.hub.repository import MAIN, open_repository
from opsctl.transfer.hub.retry_policy import OutOfTime, Patience
from opsctl.transfer.hub.sending import Outcome, Sender
from opsctl.transfer.hub.settings import HubSettings
from opsctl.transfer.hub.uploader import FILES, Uploader, nobody_sends, the_uploader


@dataclass(frozen=True)
class Plan:
    """What a sync would do: commits of files by repository, then checkpoints. unseen: folders nobody can look into."""

    batches: tuple[Batch, ...] = ()
    checkpoints: tuple[Due, ...] = ()
    notes: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.batches and not self.checkpoints

    @property
    def files(self) -> int:
        """How many would be sent."""
        return sum(len(one.add) for one in self.batches) + sum(one.files for one in self.checkpoints)

    @property
    def bytes(self) -> int:
        """Of the files that would be sent."""
        return sum(one.bytes for one in self.batches) + sum(one.bytes for one in self.checkpoints)

    @property
    def deletions(self) -> int:
        """How many names would go."""
        return sum(len(one.delete) for one in self.batches)


def plan_sync(paths: RunPaths, settings: HubSettings, kinds: Sequence[str]) -> Plan:
    """What is here and not there, by the ledger; nobody is asked. Raises OSError, OpsctlError."""
    sent, notes = sent_files(paths), []
    unseen: list[str] = []
    add: dict[str, list[SeenFile]] = {}
    delete: dict[str, list[str]] = {}
    for kind in KINDS_OF_FILES:
        repo = settings.repo(kind)
        if kind not in kinds or repo is None:
            continue
        folder, patterns = paths.folder_of(kind), settings.patterns(kind)
        look = look_at(paths, kind, folder, patterns)
        add.setdefault(repo, []).extend(_new(look.files, repo, sent))
        if kind in settings.table.mirror:
            gone = gone_files(look, folder.name, patterns, repo, MAIN, sent)
            delete.setdefault(repo, []).extend(gone)
        unseen += [f"{path}: it cannot be listed by this account" for path in look.unseen]
        notes += [f"{name!a} cannot be sent: no repository has a file of such a name" for name in look.unnameable]
    made = [one for repo in add for one in batches(repo, MAIN, add[repo], delete.get(repo, ()))]
    due, said = due_checkpoints(paths, settings, sent) if CHECKPOINTS in kinds else ((), ())
    return Plan(tuple(made), tuple(due), (*notes, *said), tuple(unseen))


@dataclass
class Syncing:
    """One run's sync, with what it needs of the world."""

    paths: RunPaths
    name: str
    settings: HubSettings
    patience: Patience

    def run(self, kinds: Sequence[str]) -> Outcome:
        """Send what is new: files, then checkpoints. Where nothing is, nobody is asked and nothing is locked.

        Raises Busy where another one sends for all the time that there is, OSError. What could not be sent is in the
        outcome.
        """
        outcome = Outcome()
        for lane, of_lane in ((FILES, KINDS_OF_FILES), (CHECKPOINTS, (CHECKPOINTS,))):
            wanted = [kind for kind in of_lane if kind in kinds]
            plan = plan_sync(self.paths, self.settings, wanted)
            if not plan.is_empty:
                with the_uploader(self.paths, lane, self.patience) as uploader:
                    plan = plan_sync(self.paths, self.settings, wanted)  # another one may have sent it until now
                    self._send_all(plan, Sender(self.paths, self.patience, outcome), uploader)
                    if lane == FILES:
                        self._tidy()
            outcome.notes += plan.notes
            outcome.left += plan.unseen
        return outcome

    def _tidy(self) -> None:
        """The ledger is written anew only while nobody else adds to it, and may stay as long as it is."""
        with contextlib.suppress(OSError), nobody_sends(self.paths, CHECKPOINTS) as is_quiet:
            if is_quiet:
                compact_ledger(self.paths)

    def _send_all(self, plan: Plan, sender: Sender, uploader: Uploader) -> None:
        """Everything, one after another. What fails in one repository keeps nothing from another."""
        stuck: dict[str, str] = {}
        begun: dict[str, Claimed] = {}
        steps: list[tuple[str, str, Callable[[Claimed], None]]] = [
            *((one.repo, _words(one), partial(self._send, sender, one)) for one in plan.batches),
            *((one.repo, one.name, partial(self._send_checkpoint, sender, one)) for one in plan.checkpoints),
        ]
        for repo, what, step in steps:
            if repo in stuck:
                sender.outcome.left.append(f"{what} to {repo}: as before it")
                continue
            if not uploader.is_still():
                sender.outcome.left.append(f"{what} to {repo}: another host has gone on in this one's place")
                continue
            try:
                if repo not in begun:
                    begun[repo] = self._begun(repo)
                step(begun[repo])
            except OutOfTime as late:
                sender.outcome.left.append(f"{what} to {repo}: {late}")
                stuck[repo] = str(late)
            except OpsctlError as error:
                sender.outcome.left.append(f"{what} to {repo}: {error}")
                stuck[repo] = str(error)
            except OSError as error:
                sender.outcome.left.append(f"{what} to {repo}: {file_problem(error)}")

    def _begun(self, repo: str) -> Claimed:
        own = note_of(self.paths, self.name, self.settings)
        remote = open_repository(self.settings, repo, self.patience)
        remote.begin(MAIN, self.settings.table.private)
        return claim(remote, own)

    def _send(self, sender: Sender, batch: Batch, to: Claimed) -> None:
        with to.note() as note:
            sender.send(to.remote, batch, f"{self.name}: {_words(batch)}", note)

    def _send_checkpoint(self, sender: Sender, due: Due, to: Claimed) -> None:
        with to.note() as note:
            if note:
                to.remote.commit(MAIN, note, [], f"{self.name}: whose this is")
        send_checkpoint(sender, to.remote, due)


def _new(files: Sequence[SeenFile], repo: str, sent: dict[Place, Sent]) -> list[SeenFile]:
    now_s = time.time()
    return [one for one in files if not is_sent(one, sent.get((repo, MAIN, one.path)), now_s)]


def _words(batch: Batch) -> str:
    kinds = sorted({one.kind for one in batch.add})
    parts = [f"{len(batch.add)} files of {', '.join(kinds)}"] if batch.add else []
    return " and ".join([*parts, *([f"{len(batch.delete)} deletions"] if batch.delete else [])])
