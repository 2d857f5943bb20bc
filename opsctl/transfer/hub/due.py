"""Which checkpoints are to be sent, and how each lies over there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.run.checkpoints.backups import Every, folders_oldest_first, manifest_or_fault, sent_as
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import HubTable
from opsctl.transfer.hub.ledger import Place, Sent
from opsctl.transfer.hub.repository import MAIN
from opsctl.transfer.hub.settings import HubSettings
from trainer.formats.checkpoint.manifest import MANIFEST, Manifest, iteration_of


@dataclass(frozen=True)
class Due:
    """A complete checkpoint that its repository does not have as it is here."""

    repo: str
    folder: Path
    manifest: Manifest
    how: str  # of runs.schema.HUB_CHECKPOINTS
    names: tuple[str, ...]  # of the manifest's files, those that are sent

    @property
    def name(self) -> str:
        """Its tag, `global_stepN`."""
        return self.folder.name

    @property
    def files(self) -> int:
        """How many are sent, the manifest too."""
        return len(self.names) + 1

    @property
    def bytes(self) -> int:
        """Of its files that are sent."""
        return sum(self.manifest.files[name].bytes for name in self.names)

    @property
    def branch(self) -> str:
        """Where it is sent to. A tag is made of a branch when that is whole, and never before."""
        return {"folder": MAIN, "branch": self.name, "tag": f"sending-{self.name}"}[self.how]

    @property
    def revision(self) -> str:
        """Where it is when it is whole."""
        return MAIN if self.how == "folder" else self.name

    def path(self, name: str) -> str:
        """A file's name over there."""
        return f"checkpoints/{self.name}/{name}" if self.how == "folder" else name


def due_checkpoints(paths: RunPaths, settings: HubSettings, sent: Mapping[Place, Sent]) -> tuple[list[Due], list[str]]:
    """Those that are complete and wanted and were not sent, oldest first; and what is to be said of others.

    Only the manifest of what was sent is looked at: a checkpoint's files never change under it. Raises OpsctlError.
    """
    repo, how = settings.repo("checkpoints"), settings.table.checkpoints
    if repo is None or how is None:
        return [], []
    due, said = [], []
    for folder in folders_oldest_first(paths.checkpoints):
        what = _every(settings.table).form(iteration_of(folder.name) or 0)
        if what is None or _is_sent(repo, settings.table, folder, sent):
            continue
        found = manifest_or_fault(folder)
        if isinstance(found, str):
            said.append(f"{folder.name} is not sent: {found}")
        else:
            due.append(Due(repo, folder, found, how, tuple(sorted(sent_as(found, what).files))))
    return due, said


def _every(table: HubTable) -> Every:
    return Every(weights=table.checkpoints_every) if table.weights_only else Every(full=table.checkpoints_every)


def _is_sent(repo: str, wanted: HubTable, folder: Path, sent: Mapping[Place, Sent]) -> bool:
    in_folder = (repo, MAIN, f"checkpoints/{folder.name}/{MANIFEST}")
    known = sent.get(in_folder if wanted.checkpoints == "folder" else (repo, folder.name, MANIFEST))
    if known is None or (known.bytes != known.size and not wanted.weights_only):  # the weights alone were sent
        return False
    try:
        found = (folder / MANIFEST).lstat()
    except OSError:
        return False
    return (known.size, known.mtime_ns) == (found.st_size, found.st_mtime_ns)
