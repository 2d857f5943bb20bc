"""Gathering what the checks look at, and telling what they found: the edge of this room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from opsctl.attempts import events as attempts_file
from opsctl.attempts.brake import without_progress
from opsctl.attempts.unseen import unseen
from opsctl.checkpoints.inventory import last_checkpoint, latest_problem
from opsctl.checkpoints.progress import is_finished
from opsctl.errors import OpsctlError, SlurmError, SlurmUnreachable
from opsctl.logs.measured import recent
from opsctl.logs.pulse import pulse_line
from opsctl.moments import now
from opsctl.records import kill_switch, lease
from opsctl.records.identity import Standing, before_the_move, is_here, place_of
from opsctl.records.own_jobs import Recorded, recorded
from opsctl.records.revisions import differs_from_published
from opsctl.records.run_view import RunView
from opsctl.records.state_files import LOG_LOCK_WAIT_S, append_bytes
from opsctl.runs.paths import RunPaths
from opsctl.runs.profile import watch_table
from opsctl.runs.schema import ArrayTable, ExpectTable, WatchTable
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.durations import parse_duration_s
from opsctl.slurm.nodes import Node
from opsctl.slurm.types import Job
from opsctl.watch.detector import Settings
from opsctl.watch.finding import Finding
from opsctl.watch.snapshot import Part, Published, Snapshot, Whereabouts
from trainer.formats.manifest import MANIFEST


def settings_of(run: RunView) -> Settings:
    """What the checks need of a run file."""
    file = run.loaded.file if run.loaded else None
    options = run.options if run.revision and not run.revision.damage else None
    return Settings(
        name=run.table.name,
        team=run.table.team,
        watch=watch_table(file) if file else WatchTable(),
        expect=file.expect if file else ExpectTable(),
        keep_queued=file.array.keep_queued if file else ArrayTable().keep_queued,
        nodes=file.slurm.nodes if file else None,
        time_limit_s=parse_duration_s(file.slurm.time) if file else None,
        save_interval=options.save_interval if options else None,
    )


def gather(run: RunView, slurm: SlurmClient, parts: Part = Part.ALL) -> Snapshot:
    """The run as it is now, as far as `parts` go. Slurm out of reach is part of it (`blind`), not an error.

    Slurm is asked before the files are read: a training that finishes meanwhile is then finished, not missing.
    """
    seen, known = Snapshot(now()), recorded(run.paths)
    if parts & (Part.QUEUE | Part.NODES):
        asked = _with_queue(seen, run.paths, known, slurm)
        nodes = _nodes(asked.running, slurm) if Part.NODES in parts else ()
        seen = replace(asked if Part.QUEUE in parts else seen, nodes=nodes)
    if Part.PROGRESS in parts:
        seen = _with_progress(seen, run)
    if Part.LOG in parts:
        seen = _with_log(seen, run.paths)
    if Part.ATTEMPTS in parts:
        seen = _with_attempts(seen, run.paths, known)
    if Part.LEASE in parts:
        seen = _with_lease(seen, run.paths)
    if Part.KILL_SWITCH in parts:
        seen = _with_kill_switch(seen, run.paths)
    if Part.RUN_FILE in parts:
        seen = _with_run_file(seen, run)
    return replace(seen, now=now())


def _with_queue(seen: Snapshot, paths: RunPaths, known: Recorded, slurm: SlurmClient) -> Snapshot:
    place = place_of(paths)
    if place.standing not in (Standing.SAME, Standing.UNBOUND):
        seen = replace(seen, whereabouts=Whereabouts(paths.output, place))
    seen = replace(seen, was_submitted=bool(known.run_id or known.chains))
    if not seen.was_submitted:
        return seen
    try:
        queue = slurm.jobs()
        hidden = unseen(known.chains, lambda: attempts_file.read(paths), queue, slurm)
    except SlurmUnreachable as error:
        return replace(seen, blind=str(error))
    seen = replace(seen, jobs=tuple(known.own(queue)), unseen=hidden)
    before = before_the_move(paths) if seen.jobs else ""
    outputs = {chain.chain: chain.output or before for chain in known.chains}
    looked_at = [(outputs.get(job.array_job_id, ""), job) for job in seen.jobs]
    elsewhere = tuple((folder, job) for folder, job in looked_at if not is_here(folder, paths))
    return replace(seen, whereabouts=Whereabouts(paths.output, place, elsewhere)) if elsewhere else seen


def _nodes(running: Job | None, slurm: SlurmClient) -> tuple[Node, ...]:
    """The nodes of the running task; none where Slurm does not tell."""
    try:
        return tuple(slurm.nodes(running.nodes)) if running is not None and running.nodes else ()
    except SlurmError:
        return ()


def _with_progress(seen: Snapshot, run: RunView) -> Snapshot:
    problem = run.revision.damage if run.revision else ""
    options, checkpoint = None if problem else run.options, last_checkpoint(run.paths.checkpoints)
    return replace(
        seen,
        revision_problem=problem or None,
        checkpoint=checkpoint,
        checkpoint_problem=latest_problem(run.paths.checkpoints),
        checkpoint_at=_changed_at(checkpoint.folder / MANIFEST) if checkpoint else None,
        is_finished=options is not None and is_finished(options, checkpoint),
        total_samples=options.train_samples if options else None,
        total_iterations=options.train_iters if options else None,
    )


def _with_log(seen: Snapshot, paths: RunPaths) -> Snapshot:
    return replace(seen, measured=recent(paths), log_written_at=_changed_at(paths.main_log))


def _with_attempts(seen: Snapshot, paths: RunPaths, known: Recorded) -> Snapshot:
    attempts = attempts_file.read(paths)
    row = without_progress(attempts, known.chains[-1].submitted_at) if known.chains else 0
    return replace(seen, attempts=tuple(attempts), attempts_without_progress=row, chains=tuple(known.chains))


def _with_lease(seen: Snapshot, paths: RunPaths) -> Snapshot:
    try:
        return replace(seen, lease=lease.look(paths))
    except OSError:
        return seen


def _with_kill_switch(seen: Snapshot, paths: RunPaths) -> Snapshot:
    try:
        return replace(seen, kill_switch=kill_switch.state(paths))
    except OpsctlError:
        return seen


def _with_run_file(seen: Snapshot, run: RunView) -> Snapshot:
    revision = run.revision
    if revision is None:
        return seen
    differs: Sequence[str] = ()
    problem = run.problem
    if run.loaded is not None and not revision.damage:
        try:
            differs = differs_from_published(run.loaded, revision)
        except OpsctlError as error:
            problem = str(error)
    published = Published(revision.name, revision.created_at, revision.created_by, tuple(differs), problem)
    return replace(seen, published=published)


def _changed_at(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC).astimezone()
    except OSError:
        return None


def pulse_lines(findings: Iterable[Finding], now: datetime) -> list[str]:
    """The findings as the watchdog's lines, stamped with local time."""
    return [pulse_line(now, finding.text, finding.alert) for finding in findings]


def append_to_log(paths: RunPaths, lines: Iterable[str]) -> None:
    """Put whole lines into the training log, beside the trainer's own. Raises OpsctlError when it cannot be written.

    It does not make a run's folders: a training that was never submitted has no log to watch over. Nothing is kept for
    later: who calls has printed the lines, and the next call says what is still so.
    """
    data = "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")
    try:
        append_bytes(paths.output, paths.main_log, data, LOG_LOCK_WAIT_S)
    except OSError as error:
        raise OpsctlError(f"not in the training log: cannot write {paths.main_log}: {error.strerror}") from None
