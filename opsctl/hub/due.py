"""Which checkpoints are to be sent, and how each lies over there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import OpsctlError
from opsctl.hub.ledger import Place, Sent
from opsctl.hub.remote import MAIN
from opsctl.hub.settings import HubSettings
from opsctl.runs.paths import RunPaths
from opsctl.runs.schema import HubTable
from trainer.formats.errors import CheckpointError
from trainer.formats.manifest import MANIFEST, Manifest, checkpoint_folders, fault_of, iteration_of, read_manifest
from trainer.formats.without_optimizer import without_optimizer


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
    try:
        folders = checkpoint_folders(paths.checkpoints)
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None
    for folder in reversed(folders):
        iteration = iteration_of(folder.name)
        if iteration is None or iteration % settings.table.checkpoints_every:
            continue
        if _is_sent(repo, settings.table, folder, sent):
            continue
        fault = fault_of(folder)
        if fault is not None:
            said.append(f"{folder.name} is not sent: {fault}")
            continue
        try:
            manifest = read_manifest(folder)
        except CheckpointError as error:  # it went this moment
            said.append(f"{folder.name} is not sent: {error}")
            continue
        due.append(Due(repo, folder, manifest, how, _wanted(manifest, settings.table.weights_only)))
    return due, said


def _wanted(manifest: Manifest, weights_only: bool) -> tuple[str, ...]:
    return tuple(sorted((without_optimizer(manifest) if weights_only else manifest).files))


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
