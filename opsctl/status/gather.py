"""Reading everything that `status` shows: one question to Slurm, the rest from the run's files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from opsctl.attempts import events as attempts_file
from opsctl.attempts.brake import BRAKE_ATTEMPTS, without_progress
from opsctl.attempts.events import Attempt
from opsctl.checkpoints.inventory import last_checkpoint
from opsctl.checkpoints.progress import is_finished
from opsctl.errors import OpsctlError, SlurmUnreachable
from opsctl.logs.parser import recent
from opsctl.moments import now
from opsctl.records import kill_switch
from opsctl.records.own_jobs import Recorded, recorded
from opsctl.records.revisions import differs_from_published
from opsctl.records.run_view import RunView
from opsctl.runs.paths import RunPaths
from opsctl.slurm.client import SlurmClient
from opsctl.status.overview import KillSwitch, Overview, Published


def gather(run: RunView, slurm: SlurmClient) -> Overview:
    """The run as it is now. Slurm out of reach is part of it (`blind`), not an error."""
    paths = run.paths
    known = recorded(paths)
    options = run.options
    checkpoint = last_checkpoint(paths.checkpoints)
    attempts = attempts_file.read(paths)
    blind = None
    try:
        jobs = tuple(known.ask(slurm))
    except SlurmUnreachable as error:
        jobs, blind = (), str(error)
    return Overview(
        name=run.table.name,
        team=run.table.team,
        output=paths.output,
        now=now(),
        jobs=jobs,
        blind=blind,
        was_submitted=bool(known.chains),
        is_finished=options is not None and is_finished(options, checkpoint),
        published=_published(run),
        measured=recent(paths),
        log_written_at=_changed_at(paths.main_log),
        total_samples=options.train_samples if options else None,
        total_iterations=options.train_iters if options else None,
        checkpoint=checkpoint,
        checkpoint_at=_changed_at(checkpoint.folder / "manifest.json") if checkpoint else None,
        attempts=tuple(attempts),
        attempts_without_progress=_without_progress(attempts, known),
        brake_at=BRAKE_ATTEMPTS,
        kill_switch=_kill_switch(paths),
    )


def _published(run: RunView) -> Published | None:
    revision = run.revision
    if revision is None:
        return None
    differs: Sequence[str] = ()
    problem = run.problem
    if run.loaded is not None:
        try:
            differs = differs_from_published(run.loaded, revision)
        except OpsctlError as error:
            problem = str(error)
    return Published(revision.name, revision.created_at, revision.created_by, tuple(differs), problem)


def _without_progress(attempts: Sequence[Attempt], known: Recorded) -> int:
    if not known.chains:
        return 0
    return without_progress(attempts, known.chains[-1].submitted_at)


def _kill_switch(paths: RunPaths) -> KillSwitch | None:
    try:
        state = kill_switch.state(paths)
    except OpsctlError:
        return None
    return KillSwitch(state.path, state.is_armed, state.is_triggered, state.describe())


def _changed_at(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).astimezone()
    except OSError:
        return None
