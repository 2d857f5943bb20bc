"""`opsctl jobs exec`: a background command at work in one of its Slurm jobs."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

import msgspec

from opsctl.core.errors import OpsctlError, SlurmError
from opsctl.core.files.state_files import remove
from opsctl.core.output import message
from opsctl.core.timestamps import now
from opsctl.jobs.background.records import BackgroundCommand, CommandRecords
from opsctl.jobs.background.submission import start_next
from opsctl.jobs.signals import Signals, noted_signals, signal_session
from opsctl.run.render.background import warning_s
from opsctl.run.state.background_progress import PROGRESS_VARIABLE
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.durations import format_duration

#: Starts in a row without reported progress after which a background command is not continued.
MOST_WITHOUT_PROGRESS = 3
#: After SIGTERM Slurm kills in 30 s where a site has not set another time: the command gets these to go, seconds.
_ENDING_S = 20.0
_SIGNALS = frozenset(map(int, signal.Signals))
#: What a shell says of a program that it cannot run.
_CANNOT_RUN = 126
_SHORTEST_LOOK_S = 0.2


def execute(
    place: CommandRecords,
    client: SlurmClient,
    name: str,
    number: int,
    job_id: int,
    host: str,
    environment: Mapping[str, str],
) -> int:
    """Carry the command on; the exit code for Slurm: the command's own, 0 where the next job goes on.

    Raises OpsctlError where nothing was run, OSError.
    """
    began = time.monotonic()
    with noted_signals() as signals:
        with place.locked(f"begin {name}"):
            command = _begun(place, name, number, job_id, host)
            if command.in_vain >= MOST_WITHOUT_PROGRESS:
                return _stopped(place, command)
            place.write(command)
            remove(place.root, place.progress(name))
        message(f"opsctl: job {job_id}, the {number}. of {name}, on {host} since {now():%Y-%m-%d %H:%M:%S}")
        try:
            child = _started(place, command, environment)
        except OSError as error:
            place.write(command.ended("failed", f"{error.filename or sys.executable}: {error.strerror}", _CANNOT_RUN))
            raise
        code = _waited_for(child, signals, warning_s(command.limit_s))
        at_limit = signals.warned_at is not None or time.monotonic() - began >= command.limit_s
        try:
            with place.locked(f"end {name}"):
                command = place.read(name) or command
                if not command.is_open:
                    return code
                return _ended(place, client, command, code, signals, at_limit)
        except OSError as error:  # a full disk must not cost the exit code, by which Slurm's word closes it
            with contextlib.suppress(OSError):
                message(f"opsctl: the end of {name} is not on record: {error.filename}: {error.strerror}")
            return code


def _begun(place: CommandRecords, name: str, number: int, job_id: int, host: str) -> BackgroundCommand:
    """Record this start of its job. Raises OpsctlError for a job that is not the last one."""
    command = place.read(name)
    if command is None:
        raise OpsctlError(f"{name} is not on record: nothing was started")
    if not command.is_open:
        raise OpsctlError(f"{name} is {command.state} already: nothing was started")
    last = command.last
    if number != len(command.jobs) or last.job_id not in (0, job_id):
        raise OpsctlError(f"{name} is carried out by job {last.job_id or len(command.jobs)}: nothing was started")
    if last.starts:  # Slurm starts this job again: after a lost node, or who preempted it has ended
        command = _counted(place, command)
    return command.with_last(job_id=job_id, host=host, began_at=last.began_at or now(), starts=last.starts + 1)


def _counted(place: CommandRecords, command: BackgroundCommand) -> BackgroundCommand:
    """Count the start that has just ended."""
    return msgspec.structs.replace(command, in_vain=0 if place.done(command.name) else command.in_vain + 1)


def _started(
    place: CommandRecords, command: BackgroundCommand, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "opsctl", *command.words],
        stdin=subprocess.DEVNULL,
        cwd=command.folder,
        umask=command.umask,
        env={**environment, PROGRESS_VARIABLE: str(place.progress(command.name))},
        start_new_session=True,
    )


def _waited_for(child: subprocess.Popen[bytes], signals: Signals, warning: float) -> int:
    """Return the exit code, 128 + N after signal N. After a warning from Slurm: interrupt the child, then kill it."""
    sent = 0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(timeout=_SHORTEST_LOOK_S)
            signal_session(child, signal.SIGKILL)  # what it left behind
            return code if code >= 0 else 128 - code
        since = [at for at in (signals.ended_at, signals.warned_at) if at is not None]
        if not since:
            continue
        grace_s = _ENDING_S if signals.ended_at is not None else 0.8 * warning
        gone_s = time.monotonic() - since[0]
        steps = ((0.0, signal.SIGINT), (0.5 * grace_s, signal.SIGTERM), (grace_s, signal.SIGKILL))
        for after_s, number in steps[sent:]:
            if gone_s >= after_s:
                sent += 1
                signal_session(child, number)


def _ended(
    place: CommandRecords, client: SlurmClient, command: BackgroundCommand, code: int, signals: Signals, at_limit: bool
) -> int:
    """Record the end, or submit the next job; return the exit code for Slurm. The caller holds the lock."""
    if code == 0:
        place.write(command.ended("done", exit_code=0))
        return 0
    if at_limit:
        return _gone_on(place, client, command, code)
    if signals.ended_at is not None:
        # Cancelled, or preempted and started again later: Slurm knows which, and the readers ask it.
        place.write(command.with_last(how="asked to end"))
        return code
    detail = f"killed by {signal.Signals(code - 128).name}" if code - 128 in _SIGNALS else ""
    place.write(command.ended("failed", detail, code))
    return code


def _gone_on(place: CommandRecords, client: SlurmClient, command: BackgroundCommand, code: int) -> int:
    limit = format_duration(command.limit_s)
    if not command.goes_on:
        detail = f"came to its limit of {limit}, and another start would begin again: give it a longer --time"
        place.write(command.ended("stopped", detail, code))
        message(f"opsctl: {command.name} {detail}")
        return code
    command = _counted(place, command).with_last(ended_at=now(), how=f"came to its limit of {limit}")
    if command.in_vain >= MOST_WITHOUT_PROGRESS:
        return _stopped(place, command)
    try:
        command = start_next(place, client, command)
    except (OpsctlError, SlurmError, OSError) as error:
        detail = f"could not be continued: {error}"
        place.write((place.read(command.name) or command).ended("stopped", detail, code))
        message(f"opsctl: {command.name} {detail}")
        return code or 1
    message(f"opsctl: {command.name} reached its time limit of {limit}: job {command.last.job_id or '?'} continues it")
    return 0


def _stopped(place: CommandRecords, command: BackgroundCommand) -> int:
    detail = f"started {command.in_vain} times in a row without progress: not continued; type it again to continue"
    place.write(command.ended("stopped", detail, 1))
    message(f"opsctl: {command.name} {detail}")
    return 1
