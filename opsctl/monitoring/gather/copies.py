"""The overdue or lost backups of a run, and the files waiting for the hub, according to the ledgers here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.monitoring.gather import Asked, changed_at
from opsctl.monitoring.snapshot import FarCopies, LostCopy, Overdue, Snapshot, Unsent
from opsctl.run.attempts import events as attempts_file
from opsctl.run.checkpoints.backups import BackedUp, What, read_backups, read_hub, where_full
from opsctl.run.checkpoints.inventory import latest_iteration
from opsctl.run.config.file_kinds import CHECKPOINTS, KINDS, kind_in
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.revisions import Revision
from opsctl.transfer.backups.data_sets import named_sets
from opsctl.transfer.backups.schedule import policy_of, rules_of
from opsctl.transfer.hub.settings import hub_settings
from opsctl.transfer.hub.sync import Plan, plan_sync
from opsctl.transfer.sending.plan import Here, checkpoints_here, choose
from trainer.formats.checkpoint.manifest import MANIFEST, tag_of
from trainer.recipe.options import OptionsError


def backups(seen: Snapshot, asked: Asked) -> Snapshot:
    """Fill Part.BACKUPS, by the published revision as the scheduler does. Raises what cannot be read."""
    revision = asked.run.revision
    if revision is None or revision.damage or revision.file.backup is None:
        return seen
    policy, found, ledger = policy_of(asked.run), checkpoints_here(asked.paths), read_backups(asked.paths)
    table, latest = policy.table, latest_iteration(asked.paths.checkpoints)
    copies = []
    for to in dict.fromkeys((*table.to, *policy.data_to)):
        due = (
            [one.iteration for one in choose(found, ledger, to, rules_of(table), latest).due] if to in table.to else []
        )
        far = FarCopies(to, _overdue(asked.paths, due), _lost_copies(to, found, ledger))
        copies.append(_with_data(far, revision, ledger, table.data and to in policy.data_to))
    return replace(seen, copies=tuple(copies))


def _overdue(paths: RunPaths, due: Sequence[int]) -> tuple[Overdue, ...]:
    at = [(tag_of(one), changed_at(paths.checkpoints / tag_of(one) / MANIFEST)) for one in due]
    return tuple(Overdue(name, moment) for name, moment in at if moment is not None)


def _lost_copies(to: str, found: Sequence[Here], ledger: Sequence[BackedUp]) -> tuple[LostCopy, ...]:
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
    """Add the state of the data sets at that destination. is_wanted: `[backup]` sends them there."""
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
    except (OpsctlError, OptionsError, OSError):  # gone, or unknown
        return False
    return True


def hub(seen: Snapshot, asked: Asked) -> Snapshot:
    """Fill Part.HUB. Raises OpsctlError, OSError."""
    paths, settings = asked.paths, hub_settings(asked.run)
    if settings is None:
        return seen
    sent = [line for line in read_hub(paths) if line.counts]
    found = []
    for kind in KINDS:
        waiting = _waiting(paths, plan_sync(paths, settings, [kind]))
        if not waiting:
            continue
        since, example = min(waiting)
        last = _last_sent(kind, sent)
        if kind == "logs":  # a log grows as long as a task runs, and is never as old as what waits in it
            since = min(since, _has_grown_since(paths, last, since))
        found.append(Unsent(kind, len(waiting), since, last, example))
    return replace(seen, unsent=tuple(found))


def _waiting(paths: RunPaths, plan: Plan) -> list[tuple[datetime, str]]:
    """Return when each file was last changed, a checkpoint when it was complete, and its name there."""
    found = [(one.mtime_ns / 1e9, one.name) for files in plan.files_of.values() for one in files]
    for due in plan.checkpoints:
        folder = paths.checkpoints / tag_of(due.iteration)
        try:
            found.append(((folder / MANIFEST).lstat().st_mtime, f"{paths.checkpoints.name}/{folder.name}"))
        except FileNotFoundError:
            continue  # it went this moment
    return [(datetime.fromtimestamp(at_s, UTC).astimezone(), name) for at_s, name in found]


def _last_sent(kind: str, sent: Iterable[BackedUp]) -> datetime | None:
    return max((one.sent_at for one in sent if one.sent_at is not None and _kind_of(one) == kind), default=None)


def _kind_of(sent: BackedUp) -> str | None:
    return CHECKPOINTS if sent.what.is_checkpoint else kind_in(sent.name.partition("/")[0])


def _has_grown_since(paths: RunPaths, last: datetime | None, otherwise: datetime) -> datetime:
    """Return since when a part of the log is missing there: the last transfer, or the start of the newest task."""
    attempts = attempts_file.read(paths)
    opened = attempts[-1].opened_at if attempts else None
    return max((at for at in (last, opened) if at is not None), default=otherwise) if opened else otherwise
