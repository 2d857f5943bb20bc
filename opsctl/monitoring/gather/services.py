"""Parts of a snapshot about what looks after the run: clocks of nodes, the pseudo-cron, alert channels."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.monitoring.gather import Asked
from opsctl.monitoring.snapshot import Clock, CronJob, CronSeen, Snapshot
from opsctl.run.attempts import events as attempts_file
from opsctl.run.state.alert_log import channels_seen, events
from opsctl.run.state.register import cron_folder, cron_folder_option
from opsctl.run.state.scheduler import CronPaths, JobHistory, heartbeat, histories, read_chain, read_runs


def clocks(seen: Snapshot, asked: Asked) -> Snapshot:
    """Fill Part.CLOCKS with the nodes of the newest attempt, when its launchers began."""
    from opsctl.run.state.attempt_folder import node_clocks  # no screen asks for it

    attempts = attempts_file.read(asked.paths)
    if not attempts:
        return seen
    folder = asked.paths.attempt_folder(attempts[-1].job_id)
    found = tuple(
        Clock(said.node, said.clock.timestamp() - stamped_s, datetime.fromtimestamp(stamped_s, UTC).astimezone())
        for said, stamped_s in node_clocks(asked.paths.output, folder)
    )
    return replace(seen, clocks=found)


def cron(seen: Snapshot, _: Asked) -> Snapshot:
    """Fill Part.CRON."""
    return replace(seen, cron=cron_seen(cron_folder(), seen.now, cron_folder_option()))


def channels(seen: Snapshot, asked: Asked) -> Snapshot:
    """Fill Part.CHANNELS."""
    return replace(seen, channels=tuple(channels_seen(events(asked.paths), seen.now)))


def cron_seen(folder: Path, now: datetime, option: str = "") -> CronSeen:
    """Return what is recorded of the pseudo-cron of `folder`.

    It is "not started" where there is none, and has a `problem` where it cannot be read.
    """
    return msgspec.structs.replace(_seen(folder, now), option=option)


def _seen(folder: Path, now: datetime) -> CronSeen:
    paths = CronPaths(folder)
    try:
        chain = read_chain(paths)
        if chain is None or chain.is_stopped:
            return CronSeen(str(folder), is_started=False)
        beat, known = heartbeat(paths), histories(read_runs(paths))
        # A job that was removed from the folder is still recorded, and is not checked.
        known = {name: job for name, job in known.items() if job.last.is_open or paths.job(name).exists()}
    except FileNotFoundError:
        return CronSeen(str(folder), is_started=False)
    except OpsctlError as error:
        return CronSeen(str(folder), is_started=True, problem=str(error))
    except OSError as error:
        return CronSeen(str(folder), is_started=True, problem=file_problem(error))
    due = (int(now.timestamp() // chain.period_s) + 1) * chain.period_s
    return CronSeen(
        folder=str(folder),
        is_started=True,
        carried_by=chain.carrier(),
        period_s=float(chain.period_s),
        heartbeat_at=beat.at if beat else chain.started_at,
        next_due_at=datetime.fromtimestamp(due, UTC).astimezone(),
        jobs=tuple(_job(known[name], now) for name in sorted(known)),
    )


def _job(history: JobHistory, now: datetime) -> CronJob:
    last = history.last
    state = {"timeout": "failed", "refused": "failed", "asked": "running", "queued": "running", "cancelled": "lost"}
    detail = f"{last.state}: {last.detail}" if last.state in state and last.detail else last.detail
    return CronJob(
        name=history.job,
        state="hanging" if last.hangs(now) else state.get(last.state, last.state),
        failures=history.failures,
        since=history.failing_since,
        detail=detail or (f"exit code {last.exit_code}" if last.exit_code else ""),
    )
