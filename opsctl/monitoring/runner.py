"""Gathering what the checks look at, and telling what they found: the edge of this room."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import LOG_LOCK_WAIT_S, append_bytes
from opsctl.core.timestamps import now
from opsctl.monitoring.check import Settings
from opsctl.monitoring.finding import Finding
from opsctl.monitoring.gather import Asked, queue, records, services
from opsctl.monitoring.snapshot import Part, Snapshot, with_newer_records
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.profile import watch_table
from opsctl.run.config.schema import ArrayTable, ExpectTable, WatchTable
from opsctl.run.logs.pulse import pulse_line
from opsctl.run.state.chains import Recorded, recorded
from opsctl.run.state.run_view import RunView
from opsctl.slurm.client import SlurmReader
from opsctl.slurm.durations import parse_duration_s
from trainer.formats.errors import CheckpointError
from trainer.recipe.save_schedule import SaveSchedule

Look = Callable[[Snapshot, Asked], Snapshot]


def _rarely(module: str, name: str) -> Look:
    """Return a source that only the regular check wants: no screen pays for what its module imports."""

    def look(seen: Snapshot, asked: Asked) -> Snapshot:
        found: Look = getattr(importlib.import_module(f"opsctl.monitoring.gather.{module}"), name)
        return found(seen, asked)

    return look


#: What a look asks the run's files for, after Slurm: the parts that it fills in, and what does so.
_SOURCES: tuple[tuple[Part, Look], ...] = (
    (Part.PROGRESS, records.progress),
    (Part.LOG | Part.SERIES, records.log),
    (Part.ATTEMPTS, records.attempts),
    (Part.LEASE, records.lease),
    (Part.KILL_SWITCH, records.kill_switch),
    (Part.RUN_FILE, records.run_file),
    (Part.FILES, records.files),
    (Part.SPACE | Part.PURGE, _rarely("space", "spaces")),
    (Part.CLOCKS, services.clocks),
    (Part.CRON, services.cron),
    (Part.CHANNELS, services.channels),
    (Part.HUB, _rarely("copies", "hub")),
    (Part.BACKUPS, _rarely("copies", "backups")),
    (Part.TIMINGS, records.timings),
)

#: What a source raises that cannot be looked at; anything else is a fault of ours.
_EXPECTED = (OSError, OpsctlError, CheckpointError)


def settings_of(run: RunView) -> Settings:
    """Return the settings that the checks need, from a run file."""
    file = run.file
    options = run.options if run.revision and not run.revision.damage else None
    return Settings(
        name=run.table.name,
        team=run.table.team,
        watch=watch_table(file) if file else WatchTable(),
        expect=file.expect if file else ExpectTable(),
        keep_queued=file.array.keep_queued if file else ArrayTable().keep_queued,
        nodes=file.slurm.nodes + file.slurm.spare if file else None,
        time_limit_s=parse_duration_s(file.slurm.time) if file else None,
        saves=SaveSchedule.of(options) if options else None,
        evaluates_every=(options["eval_interval"] if options["eval_iters"] else 0) if options else None,
        log_interval=options.log_interval if options else None,
        global_batch_size=options.global_batch_size if options else None,
        array=file.array.tasks if file else "",
    )


def gather(run: RunView, slurm: SlurmReader, parts: Part = Part.ALL, is_tolerant: bool = False) -> Snapshot:
    """Return a snapshot of the run with `parts`. An unreachable Slurm is recorded in `blind`, not raised.

    Slurm is asked before the files are read: a training that finishes meanwhile is then finished, not missing. What
    cannot be read is listed in `problems`; for the parts of the screen (Part.ALL) only if `is_tolerant`, otherwise it
    is raised as OpsctlError or OSError.
    """
    seen, known = Snapshot(now()), Recorded()
    try:
        known = recorded(run.paths)
    except Exception as error:
        if not is_tolerant:
            raise
        seen = _blind(seen, parts & (Part.QUEUE | Part.NODES | Part.ATTEMPTS), error)
        seen = replace(seen, blind=in_words(error))
        parts &= ~(Part.QUEUE | Part.NODES | Part.ATTEMPTS)
    asked = Asked(run, slurm, parts, known)
    for part, look in ((Part.QUEUE | Part.NODES | Part.PARTITION, queue.look), *_SOURCES):
        if not parts & part:
            continue
        try:
            seen = look(seen, asked)
        except Exception as error:  # a fault of ours in one part must not blind who watches to all the others
            if not is_tolerant and (parts & part & Part.ALL or not isinstance(error, _EXPECTED)):
                raise
            seen = _blind(seen, parts & part, error)
            if Part.QUEUE in part:
                seen = replace(seen, blind=in_words(error))
    return replace(with_newer_records(seen), now=now())


def _blind(seen: Snapshot, parts: Part, error: Exception) -> Snapshot:
    """Record that `parts` could not be read."""
    return replace(seen, problems=(*seen.problems, *((part, in_words(error)) for part in parts)))


def in_words(error: Exception) -> str:
    """Return why something could not be read, in a clause."""
    if isinstance(error, OSError):
        return file_problem(error)
    return str(error) if isinstance(error, _EXPECTED) else f"{type(error).__name__}: {error}"


def pulse_lines(findings: Iterable[Finding], now: datetime) -> list[str]:
    """Return the findings as the watchdog's lines, stamped with local time. Equal texts give one line."""
    return list(dict.fromkeys(pulse_line(now, finding.text, finding.alert) for finding in findings))


def append_to_log(paths: RunPaths, lines: Iterable[str]) -> None:
    """Append whole lines to the training log, next to the trainer's own. Raises OpsctlError when it cannot be written.

    It does not make a run's folders: a training that was never submitted has no log to watch over. Nothing is kept for
    later: who calls has printed the lines, and the next call says what is still so.
    """
    data = "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")
    try:
        append_bytes(paths.output, paths.main_log, data, LOG_LOCK_WAIT_S)
    except OSError as error:
        raise OpsctlError(f"not in the training log: cannot write {paths.main_log}: {error.strerror}") from None
