"""Reading what a hand-over is made from: a run's records, each by itself, so that a damaged one hides no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from opsctl.core.errors import OpsctlError
from opsctl.monitoring.runner import in_words
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.checkpoints.rollbacks import read_prunes, read_rollbacks
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import alert_log, requests
from opsctl.run.state.kill_switch import read_deactivations
from opsctl.run.state.revisions import published_since
from opsctl.run.state.run_view import RunView
from opsctl.ui.status.on_call import Facts
from opsctl.ui.status.overview import LOOKED_AT, Overview
from opsctl.ui.status.read_run import open_findings, read_desk
from trainer.formats.checkpoint.manifest import MANIFEST, checkpoint_folders, iteration_of
from trainer.formats.errors import CheckpointError

T = TypeVar("T")


def read_facts(run: RunView, snapshot: Snapshot, since: datetime, parts: Part = LOOKED_AT) -> Facts:
    """The run as `snapshot`, a look at `parts`, has it, and its records since then."""
    overview = Overview(run.table.name, run.table.team, run.paths.output, snapshot)
    desk, paths, unread = read_desk(run.paths, snapshot.now), run.paths, []

    def tried(what: str, read: Callable[[], Sequence[T]]) -> Sequence[T]:
        try:
            return read()
        except (OSError, OpsctlError, CheckpointError) as error:
            unread.append(f"{what}: {in_words(error)}")
            return ()

    revisions = tried("revisions", lambda: published_since(paths, since))
    events = tried("alerts", lambda: alert_log.events(paths))
    asked = tried("requests", lambda: requests.printed(paths))
    rollbacks = tried("rollbacks", lambda: read_rollbacks(paths))
    prunes = tried("prunes", lambda: read_prunes(paths))
    deactivations = tried("the kill switch's record", lambda: read_deactivations(paths))
    checkpoints = tried("checkpoints", lambda: _checkpoints(paths))
    problems = [f"{part.name}: {why}" for part, why in snapshot.problems if part in Part.ALL and snapshot.blind is None]
    return Facts(
        name=run.table.name,
        output=paths.output,
        overview=overview,
        findings=open_findings(run, overview, desk, parts),
        desk=desk,
        cancels=desk.cancels,
        deactivations=deactivations,
        revisions=revisions,
        alerts=events,
        requests=asked,
        rollbacks=rollbacks,
        prunes=prunes,
        checkpoints=checkpoints,
        unread=(*problems, *unread, *([desk.problem] if desk.problem else [])),
    )


def _checkpoints(paths: RunPaths) -> list[tuple[int, datetime]]:
    """(iteration, when it was whole) of each that has its manifest. Raises CheckpointError."""
    found = []
    for folder in checkpoint_folders(paths.checkpoints):
        iteration = iteration_of(folder.name)
        try:
            at = datetime.fromtimestamp((folder / MANIFEST).stat().st_mtime, UTC).astimezone()
        except OSError:
            continue
        if iteration is not None:
            found.append((iteration, at))
    return found
