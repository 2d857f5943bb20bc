"""What waits to be sent to the hub, by the ledger of what was sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import PurePosixPath

from opsctl.monitoring.gather.asked import Asked
from opsctl.monitoring.snapshot import Snapshot, Unsent
from opsctl.run.attempts import events as attempts_file
from opsctl.run.config.file_kinds import CHECKPOINTS, KINDS, kind_in
from opsctl.run.config.paths import RunPaths
from opsctl.transfer.hub.ledger import Sent, sent_files
from opsctl.transfer.hub.plan import Plan, plan_sync
from opsctl.transfer.hub.settings import hub_settings
from trainer.formats.checkpoint.manifest import MANIFEST, iteration_of


def look(seen: Snapshot, asked: Asked) -> Snapshot:
    """Part.HUB. Raises OpsctlError, OSError."""
    paths, settings = asked.paths, hub_settings(asked.run)
    if settings is None:
        return seen
    sent = sent_files(paths).values()
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
    """When each file was last changed, a checkpoint's when it was whole, and its name there."""
    found = [(one.mtime_ns / 1e9, one.path) for batch in plan.batches for one in batch.add]
    for due in plan.checkpoints:
        try:
            found.append(((due.folder / MANIFEST).lstat().st_mtime, f"{paths.checkpoints.name}/{due.name}"))
        except FileNotFoundError:
            continue  # it went this moment
    return [(datetime.fromtimestamp(at_s, UTC).astimezone(), name) for at_s, name in found]


def _last_sent(kind: str, sent: Iterable[Sent]) -> datetime | None:
    return max((one.at for one in sent if one.at is not None and _kind_of(one) == kind), default=None)


def _kind_of(sent: Sent) -> str:
    first = PurePosixPath(sent.path).parts[0]
    if iteration_of(sent.revision.removeprefix("sending-")) is not None:
        return CHECKPOINTS
    return kind_in(first) or first


def _has_grown_since(paths: RunPaths, last: datetime | None, otherwise: datetime) -> datetime:
    """Since when something of the log is not there: what was sent last, or the newest task's beginning."""
    attempts = attempts_file.read(paths)
    opened = attempts[-1].opened_at if attempts else None
    return max((at for at in (last, opened) if at is not None), default=otherwise) if opened else otherwise
