"""`opsctl cron exec`: one run's program, at work inside its Slurm job, its end and output on record."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import append_bytes, locked, make_folder, read_text, remove, write_atomically
from opsctl.core.files.trusted import names_of, read_program
from opsctl.core.timestamps import now
from opsctl.jobs.scheduler.context import Cron, interpreter_of
from opsctl.jobs.scheduler.job_runs import LOCK_WAIT_S, digest_of
from opsctl.jobs.signals import Signals, exit_words, noted_signals, signal_session
from opsctl.run.config.locate import CRON_FOLDER_VARIABLE
from opsctl.run.state.scheduler import CronRun, RunEvent, RunState, append_run, histories, read_runs

#: Given to a program to go after SIGTERM, seconds.
GRACE_S = 10.0
#: Outputs that are kept of each job.
KEPT_OUTPUTS = 48
_MOST_NAMES = 20_000
#: What a shell says of a program that it cannot run.
_CANNOT_RUN = 126
#: Written as it comes.
MOST_BYTES = 1 << 20
#: Of what comes after that, the end is kept.
END_BYTES = 64 << 10
_CHUNK_BYTES = 64 << 10
_WAIT_S = 0.2


@dataclass(frozen=True)
class Exit:
    """The end of a program."""

    state: RunState
    exit_code: int
    detail: str = ""


def execute(cron: Cron, run_id: str, digest: str, job_id: int, host: str) -> int:
    """Run the program, unless the run was closed; return its exit code, for Slurm.

    Raises OpsctlError where nothing was run, OSError.
    """
    paths = cron.paths
    with locked(paths.folder, paths.lock, LOCK_WAIT_S, f"begin run {run_id}"):
        run = next((one for one in read_runs(paths) if one.run == run_id), None)
        if run is None or not run.is_open or run.began_at is not None:
            how = "is not on record" if run is None else f"is {run.state} already"
            raise OpsctlError(f"run {run_id} {how}: nothing was started")
        output = paths.logs / f"{run.job.replace('/', '-')}.{run_id}.out"
        place = str(output.relative_to(paths.folder))
        event = partial(RunEvent, run=run.run, job=run.job)
        append_run(paths, event(event="began", at=now(), job_id=job_id, host=host, output=place))
    began = time.monotonic()
    try:
        text = read_program(paths.folder, paths.text(run_id), cron.table.group)
        if digest_of(text) != digest:
            raise OpsctlError("its program is not the one that was submitted: it was changed meanwhile")
        make_folder(paths.folder, output.parent)
        with Printout(paths.folder, output) as printout:
            done = _run(cron, run, text, printout)
    except (OSError, OpsctlError) as error:
        done = Exit("failed", _CANNOT_RUN, f"could not be run: {error}")
    took = round(time.monotonic() - began, 3)
    end = {"state": done.state, "exit_code": done.exit_code, "duration_s": took, "detail": done.detail}
    with contextlib.suppress(OSError):  # a full disk must not cost the exit status, which Slurm keeps too
        append_run(paths, event(event="ended", at=now(), **end))  # type: ignore[arg-type]
    _clear_away(cron, run)
    return done.exit_code


def _run(cron: Cron, run: CronRun, text: str, printout: Printout) -> Exit:
    """Run the text with the program of its first line, from a private file, up to its limit."""
    with noted_signals() as signals, tempfile.TemporaryDirectory(prefix="opsctl-cron-") as folder:
        program = Path(folder) / f"{run.job.rpartition('/')[2]}.slurm"
        write_atomically(Path(folder), program, text, 0o700)
        child = subprocess.Popen(
            [*interpreter_of(text), str(program)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(cron, run),
            start_new_session=True,
        )
        return _watched(child, run.limit_s - min(30.0, run.limit_s / 10), printout, signals)


def _watched(child: subprocess.Popen[bytes], most_s: float, printout: Printout, signals: Signals) -> Exit:
    """Copy the output until the program ends; end it at its limit or when the job is asked to end."""
    assert child.stdout is not None
    began, asked_at, why = time.monotonic(), 0.0, Exit("done", 0)
    fd = child.stdout.fileno()
    os.set_blocking(fd, False)
    while True:
        is_open = printout.copy_what_comes(fd)
        code = child.poll()
        if code is not None:
            # What it left behind may hold the pipe for ever: that is not waited for.
            while is_open and printout.copy_what_comes(fd, 0.0) and printout.got_any:
                pass
            signal_session(child, signal.SIGKILL)
            break
        at = time.monotonic()
        is_ended = signals.ended_at is not None
        if not asked_at and (is_ended or at - began > most_s):
            asked_at = at
            why = (
                Exit("cancelled", 143, "the job was asked to end")
                if is_ended
                else Exit("timeout", 124, f"ended after {most_s:.0f} s, near its time limit")
            )
            signal_session(child, signal.SIGTERM)
        elif asked_at and at - asked_at > GRACE_S:
            signal_session(child, signal.SIGKILL)
        if not is_open:
            time.sleep(0.05)
    if asked_at:
        return why
    exit_code, killed = exit_words(code)
    return Exit("failed" if code else "done", exit_code, killed)


def _environment(cron: Cron, run: CronRun) -> dict[str, str]:
    own = {
        CRON_FOLDER_VARIABLE: str(cron.paths.folder),
        "OPSCTL_CRON_JOB": run.job,
        "OPSCTL_CRON_DUE": str(run.due) if run.due else "",
    }
    base = dict(os.environ)
    folders = [str(Path(sys.executable).parent), *filter(None, [base.get("PATH")])]
    return {**base, "PATH": os.pathsep.join(folders), **own}


def _clear_away(cron: Cron, run: CronRun) -> None:
    """Remove the run's program and the oldest outputs of its job."""
    paths, begins = cron.paths, f"{run.job.replace('/', '-')}."
    with contextlib.suppress(OSError):
        remove(paths.folder, paths.text(run.run))
    with contextlib.suppress(OSError):
        outputs = [name for name in names_of(paths.folder, paths.logs, _MOST_NAMES) if name.startswith(begins)]
        for name in outputs[:-KEPT_OUTPUTS]:
            remove(paths.folder, paths.logs / name)


def newest_run(cron: Cron, name: str) -> CronRun:
    """Return the newest run of the job `refill` or `hourly/refill`. Raises OpsctlError if it is not exactly one job."""
    known = histories(read_runs(cron.paths))
    found = [job for job in known if name in (job, job.rpartition("/")[2])]
    if len(found) != 1:
        raise OpsctlError(
            f"no run of a job {name!r}: opsctl cron status" if not found else f"{name}: {' or '.join(found)}?"
        )
    return known[found[0]].last


def output_of(cron: Cron, run: CronRun) -> str | None:
    """Return the output of a run so far; None if none is kept. Raises OSError."""
    return read_text(cron.paths.folder, cron.paths.folder / run.output) if run.output else None


class Printout:
    """The file `path` under `root`. A disk that takes nothing keeps no program from running."""

    def __init__(self, root: Path, path: Path) -> None:
        self.root, self.path = root, path
        self.got_any = False  # whether the last look brought anything
        self._written = 0
        self._line = bytearray()  # one that has no end yet
        self._end = bytearray()
        self._left_out = 0

    def __enter__(self) -> Printout:
        self._append(b"")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._take(b"", is_last=True)
        if self._left_out:
            self._append(b"... %d bytes are left out here ...\n" % self._left_out)
        if self._end:
            self._append(bytes(self._end))

    def copy_what_comes(self, fd: int, wait_s: float = _WAIT_S) -> bool:
        """Take what there is, waiting a moment for it; False at the end of the output."""
        self.got_any = False
        ready, _, _ = select.select([fd], [], [], wait_s)
        if not ready:
            return True
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        self.got_any = bool(data)
        self._take(data)
        return bool(data)

    def _take(self, data: bytes, is_last: bool = False) -> None:
        """Write whole lines only, because each append begins on a new line."""
        self._line += data
        whole = len(self._line) if is_last or len(self._line) > _CHUNK_BYTES else self._line.rfind(b"\n") + 1
        taken = bytes(self._line[:whole])
        del self._line[:whole]
        if taken and not self._end and self._written + len(taken) <= MOST_BYTES:
            self._append(taken)
            self._written += len(taken)
            return
        self._end += taken
        too_many = len(self._end) - END_BYTES
        if too_many > 0:
            self._left_out += too_many
            del self._end[:too_many]

    def _append(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            append_bytes(self.root, self.path, data)
