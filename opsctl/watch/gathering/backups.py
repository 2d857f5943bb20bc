"""What of a run's backups is overdue or lost, as its published `[backup]` and the ledger here have it."""

from __future__ import annotations

from dataclasses import replace

from opsctl.backups.schedule import Here, choose
from opsctl.checkpoints.backups import digest_here, plain_url, read_backups, where_full
from opsctl.checkpoints.inventory import latest_iteration
from opsctl.runs.paths import RunPaths
from opsctl.watch.gathering.asked import Asked, changed_at
from opsctl.watch.seen import FarCopies, LostCopy, Overdue
from opsctl.watch.snapshot import Snapshot
from trainer.formats.errors import CheckpointError
from trainer.formats.manifest import MANIFEST, checkpoint_folders, read_manifest, tag_of
from trainer.formats.resumable import NO_OPTIMIZER


def look(seen: Snapshot, asked: Asked) -> Snapshot:
    """Part.BACKUPS. What is published counts, as for the cron. Raises what cannot be read."""
    revision = asked.run.revision
    table = revision.file.backup if revision is not None and not revision.damage else None
    if table is None:
        return seen
    paths, found, ledger = asked.paths, _here(asked.paths), read_backups(asked.paths)
    numbers, latest = {one.iteration for one in found}, latest_iteration(paths.checkpoints)
    copies = []
    for to in map(plain_url, table.to):
        due = [one.iteration for one in choose(found, ledger, table, to, latest).due]
        at = [(tag_of(one), changed_at(paths.checkpoints / tag_of(one) / MANIFEST)) for one in due]
        lost = [
            LostCopy(
                tag_of(line.iteration),
                line.lost,
                line.iteration in numbers,
                bool(where_full(ledger, line.iteration, line.of)),
            )
            for line in ledger
            if line.to == to and line.lost and line.what.is_checkpoint
        ]
        overdue = [Overdue(name, moment) for name, moment in at if moment is not None]
        copies.append(FarCopies(to, tuple(overdue), tuple(lost)))
    return replace(seen, copies=tuple(copies))


def _here(paths: RunPaths) -> list[Here]:
    """The checkpoints that have a manifest; whether their files are whole is for the backup itself to see."""
    found = []
    for folder in checkpoint_folders(paths.checkpoints):
        of = digest_here(folder)
        try:
            manifest = read_manifest(folder)
        except CheckpointError:  # another check says that
            continue
        if of is not None:
            is_full = manifest.layout.get("optimizer") != NO_OPTIMIZER
            found.append(Here(manifest.iteration, of, is_full, manifest.pinned))
    return found
