"""What of a run's backups is overdue or lost, as its published `[backup]` and the ledger here have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.monitoring.gather.asked import Asked, changed_at
from opsctl.monitoring.snapshot import FarCopies, LostCopy, Overdue, Snapshot
from opsctl.run.checkpoints.backups import BackedUp, What, digest_here, read_backups, where_full
from opsctl.run.checkpoints.inventory import latest_iteration
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.revisions import Revision
from opsctl.transfer.backups.data_sets import named_sets
from opsctl.transfer.backups.schedule import Here, choose, policy_of
from trainer.formats.checkpoint.manifest import MANIFEST, checkpoint_folders, read_manifest, recorded_damage, tag_of
from trainer.formats.checkpoint.resumable import NO_OPTIMIZER
from trainer.formats.errors import CheckpointError
from trainer.recipe.options import OptionsError


def look(seen: Snapshot, asked: Asked) -> Snapshot:
    """Part.BACKUPS. What is published counts, as for the cron. Raises what cannot be read."""
    revision = asked.run.revision
    if revision is None or revision.damage or revision.file.backup is None:
        return seen
    policy, found, ledger = policy_of(asked.run), _here(asked.paths), read_backups(asked.paths)
    table, latest = policy.table, latest_iteration(asked.paths.checkpoints)
    copies = []
    for to in dict.fromkeys((*table.to, *policy.data_to)):
        due = [one.iteration for one in choose(found, ledger, table, to, latest).due] if to in table.to else []
        far = FarCopies(to, _overdue(asked.paths, due), _lost(to, found, ledger))
        copies.append(_with_data(far, revision, ledger, table.data and to in policy.data_to))
    return replace(seen, copies=tuple(copies))


def _overdue(paths: RunPaths, due: Sequence[int]) -> tuple[Overdue, ...]:
    at = [(tag_of(one), changed_at(paths.checkpoints / tag_of(one) / MANIFEST)) for one in due]
    return tuple(Overdue(name, moment) for name, moment in at if moment is not None)


def _lost(to: str, found: Sequence[Here], ledger: Sequence[BackedUp]) -> tuple[LostCopy, ...]:
    numbers = {one.iteration for one in found}
    return tuple(
        LostCopy(
            tag_of(line.iteration),
            line.lost,
            line.iteration in numbers,
            bool(where_full(ledger, line.iteration, line.of)),
        )
        for line in ledger
        if line.to == to and line.lost and line.what.is_checkpoint
    )


def _with_data(far: FarCopies, revision: Revision, ledger: Sequence[BackedUp], is_wanted: bool) -> FarCopies:
    """With what is known of the data sets there. is_wanted: whether `[backup]` sends them there."""
    of_data = [line for line in ledger if line.what is What.DATA]
    line = next((one for one in of_data if one.to == far.to), None)
    if line is not None and line.lost:
        is_elsewhere = any(one.of == line.of and one.counts for one in of_data)
        lost = LostCopy(What.DATA.words, line.lost, _is_data_here(revision), is_elsewhere)
        return msgspec.structs.replace(far, data_lost=lost)
    return msgspec.structs.replace(far, data_wanted_since=revision.created_at if is_wanted and line is None else None)


def _is_data_here(revision: Revision) -> bool:
    try:
        named_sets(revision.options())
    except (OpsctlError, OptionsError, OSError):  # gone, or nobody can tell
        return False
    return True


def _here(paths: RunPaths) -> list[Here]:
    """The checkpoints that have a manifest; whether their files are whole is for the backup itself to see."""
    found = []
    for folder in checkpoint_folders(paths.checkpoints):
        of = digest_here(folder)
        try:
            manifest, damage = read_manifest(folder), recorded_damage(folder)
        except CheckpointError:  # another check says that
            continue
        if of is not None:
            is_full = manifest.layout.get("optimizer") != NO_OPTIMIZER
            found.append(Here(manifest.iteration, of, is_full, manifest.pinned, damage or ""))
    return found
