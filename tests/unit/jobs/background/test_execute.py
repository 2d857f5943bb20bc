"""Test what a job of a long command does, with a shell script in the place of opsctl: real processes, real signals."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from opsctl.core.errors import OpsctlError, SlurmUnreachable
from opsctl.core.files.state_files import write_state
from opsctl.jobs.background.execute import MOST_WITHOUT_PROGRESS, execute
from opsctl.jobs.background.records import BackgroundCommand
from opsctl.jobs.background.submission import start
from opsctl.run.state.background_progress import PROGRESS_VARIABLE, CommandProgress
from tests.unit.jobs.background.sent import a_command, a_place
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory

LONG_S = 240
WAITS = "touch $0.began; while :; do sleep 0.05; done"
#: A shell whose `sleep` ends by itself just as it is interrupted would go on.
ENDS = f"trap 'exit 130' INT; {WAITS}"


class Job:
    """The job of a background command that is on record, about to begin."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.slurm = a_place(folder), SlurmInMemory()
        self.program = folder / "program"
        self.environment = {"PATH": os.environ["PATH"], "OF_MINE": "kept"}
        monkeypatch.setattr(sys, "executable", str(self.program))
        self.command = start(self.place, self.slurm, a_command(folder))

    def change(self, **changes: object) -> None:
        self.place.write(msgspec.structs.replace(self.now, **changes))

    @property
    def now(self) -> BackgroundCommand:
        found = self.place.read(self.command.name)
        assert found is not None
        return found

    def run(self, body: str, *, number: int = 1, job_id: int = 101, meanwhile: Callable[[], None] | None = None) -> int:
        """Its exit code for Slurm, of a command that is this shell script; `meanwhile` it is at work."""
        self.program.write_text(f"#!/bin/bash\n{body}\n")
        self.program.chmod(0o755)
        helper = threading.Thread(target=self._once_at_work, args=(meanwhile,)) if meanwhile else None
        if helper:
            helper.start()
        try:
            name = self.command.name
            return execute(self.place, self.slurm, name, number, job_id, "node1", self.environment)
        finally:
            if helper:
                helper.join()

    def _once_at_work(self, then: Callable[[], None]) -> None:
        deadline = time.monotonic() + LONG_S
        while not self.program.with_name("program.began").exists():
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        then()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(tmp_path, monkeypatch)


def tells(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def test_the_command_has_its_words_folder_umask_and_environment_and_no_input(job: Job, tmp_path: Path) -> None:
    job.change(umask=0o027, words=("data", "prepare", "a b\nc", "--", "-x"))
    told, typed = tmp_path / "told", tmp_path / "typed"
    typed.write_text("what a user types")
    body = f'printf "%s|" "$@" "$PWD" "$OF_MINE" "${PROGRESS_VARIABLE}" "$(umask)" "$(cat)" > {told}'
    own_input = os.dup(0)
    try:
        os.dup2(os.open(typed, os.O_RDONLY), 0)
        assert job.run(body) == 0
    finally:
        os.dup2(own_input, 0)
    wanted = ("-P", "-m", "opsctl", "data", "prepare", "a b\nc", "--", "-x", str(tmp_path), "kept")
    assert tuple(told.read_text().split("|")) == (
        *(*wanted, str(job.place.progress(job.command.name)), "0027", "", ""),
    )
    assert (job.now.state, job.now.exit_code, job.now.last.starts, job.now.last.host) == ("done", 0, 1, "node1")


@pytest.mark.parametrize(
    ("body", "code", "detail"), [("exit 3", 3, ""), ("kill -9 $$", 137, "SIGKILL"), ("exit 255", 255, "")]
)
def test_its_exit_code_is_the_commands(job: Job, body: str, code: int, detail: str) -> None:
    assert job.run(body) == code
    assert (job.now.state, job.now.exit_code, len(job.slurm.scripts)) == ("failed", code, 1)
    assert detail in job.now.detail and bool(detail) == bool(job.now.detail)


def test_what_the_command_leaves_behind_ends_with_it(job: Job, tmp_path: Path) -> None:
    left = tmp_path / "left"
    job.run(f"sleep 1000 & echo $! > {left}")
    state = Path(f"/proc/{left.read_text().strip()}/stat")
    deadline = time.monotonic() + LONG_S
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_warned_it_interrupts_the_command_and_the_next_job_goes_on(job: Job) -> None:
    told = job.program.with_name("interrupted")
    body = f"trap 'touch {told}; exit 130' INT; {WAITS}"
    assert job.run(body, meanwhile=tells(signal.SIGUSR1)) == 0
    assert told.exists() and job.now.is_open and job.now.in_vain == 1
    assert [one.job_id for one in job.now.jobs] == [101, 102] and "limit" in job.now.jobs[0].how
    assert "--number 2" in job.slurm.scripts[1]


def test_one_that_hears_no_interrupt_is_killed_before_the_limit(job: Job) -> None:
    job.change(limit_s=4)
    body = f"trap '' INT TERM; {WAITS}"
    assert job.run(body, meanwhile=tells(signal.SIGUSR1)) == 0
    assert len(job.now.jobs) == 2


def test_one_that_would_begin_anew_is_stopped(job: Job) -> None:
    job.change(goes_on=False)
    assert job.run(ENDS, meanwhile=tells(signal.SIGUSR1)) == 130
    assert job.now.state == "stopped" and "longer --time" in job.now.detail and len(job.slurm.scripts) == 1


def test_one_that_is_done_when_it_is_warned_is_done(job: Job) -> None:
    assert job.run(f"trap 'exit 0' INT; {WAITS}", meanwhile=tells(signal.SIGUSR1)) == 0
    assert (job.now.state, len(job.slurm.scripts)) == ("done", 1)


def test_told_to_end_it_ends_the_command_and_leaves_the_rest_to_slurms_word(job: Job) -> None:
    assert job.run(ENDS, meanwhile=tells(signal.SIGTERM)) == 130
    assert job.now.is_open and job.now.last.how and len(job.slurm.scripts) == 1


def test_cancelled_meanwhile_nothing_goes_on(job: Job) -> None:
    def cancelled() -> None:
        job.place.write(job.now.ended("cancelled"))
        os.kill(os.getpid(), signal.SIGUSR1)

    assert job.run(ENDS, meanwhile=cancelled) == 130
    assert (job.now.state, len(job.slurm.scripts)) == ("cancelled", 1)


def test_starts_that_told_no_progress_are_counted_and_progress_ends_the_row(job: Job) -> None:
    job.change(in_vain=MOST_WITHOUT_PROGRESS - 1)

    def told() -> None:
        write_state(job.place.root, job.place.progress(job.command.name), CommandProgress(done=5))
        os.kill(os.getpid(), signal.SIGUSR1)

    assert job.run(ENDS, meanwhile=told) == 0
    assert job.now.in_vain == 0
    job.program.with_name("program.began").unlink()
    job.change(in_vain=MOST_WITHOUT_PROGRESS - 1)
    assert job.run(ENDS, number=2, job_id=102, meanwhile=tells(signal.SIGUSR1)) == 1
    assert job.now.state == "stopped" and str(MOST_WITHOUT_PROGRESS) in job.now.detail


def test_a_job_that_slurm_starts_again_counts_what_its_last_start_told(job: Job) -> None:
    first = job.now.with_last(starts=1)
    job.place.write(first)
    assert job.run("exit 0") == 0
    assert (job.now.in_vain, job.now.last.starts) == (1, 2)
    job.place.write(msgspec.structs.replace(first, in_vain=MOST_WITHOUT_PROGRESS - 1))
    assert job.run("touch $0.ran") == 1
    assert job.now.state == "stopped" and not job.program.with_name("program.ran").exists()


@pytest.mark.parametrize(("number", "job_id"), [(2, 101), (1, 999)])
def test_a_job_that_is_not_the_one_that_counts_starts_nothing(job: Job, number: int, job_id: int) -> None:
    with pytest.raises(OpsctlError, match=f"^{job.command.name} .* job 101"):
        job.run("touch $0.ran", number=number, job_id=job_id)
    job.change(state="cancelled")
    with pytest.raises(OpsctlError, match=f"^{job.command.name} .*cancelled"):
        job.run("touch $0.ran")
    job.place.forget(job.command.name)
    with pytest.raises(OpsctlError, match=f"^{job.command.name} "):
        job.run("touch $0.ran")
    assert not job.program.with_name("program.ran").exists()


def test_a_job_whose_id_got_lost_is_the_one_that_counts(job: Job) -> None:
    job.place.write(job.now.with_last(job_id=0))
    assert job.run("exit 0") == 0
    assert (job.now.state, job.now.last.job_id) == ("done", 101)


def test_where_the_next_job_cannot_be_had_it_is_stopped_with_the_reason(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsctl.jobs.background.submission._PAUSE_S", 0)

    def no_answer(_script: str) -> int:
        raise SlurmUnreachable("no answer")

    def gone() -> None:
        monkeypatch.setattr(job.slurm, "submit", no_answer)
        os.kill(os.getpid(), signal.SIGUSR1)

    assert job.run(ENDS, meanwhile=gone) == 130
    assert job.now.state == "stopped" and "no answer" in job.now.detail


def test_a_command_that_cannot_be_run_has_failed(job: Job) -> None:
    job.change(folder="/nowhere")
    with pytest.raises(OSError, match="nowhere"):
        job.run("exit 0")
    assert (job.now.state, job.now.exit_code) == ("failed", 126) and "/nowhere" in job.now.detail


def test_a_full_disk_at_its_record_costs_neither_the_exit_code_nor_what_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getuid():
        pytest.skip("a small disk of one's own needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs here")
    fills = ("dd", "if=/dev/zero", f"of={disk}/filler", "bs=4k", "status=none")
    try:
        job = Job(disk, monkeypatch)
        job.program = tmp_path / "program"
        monkeypatch.setattr(sys, "executable", str(job.program))
        assert job.run(f"{shlex.join(fills)}; exit 5") == 5
        assert job.now.is_open
        second = FillsAndTakes(fills)
        (disk / "filler").unlink()
        job.place.forget(job.command.name)
        command = start(job.place, second, a_command(disk))
        assert command.last.job_id == 101 and [one.last.job_id for one in job.place.all()] == [0]
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


class FillsAndTakes(SlurmInMemory):
    """Takes a job while the disk gets full."""

    def __init__(self, fills: Sequence[str]) -> None:
        super().__init__()
        self.fills = fills

    def submit(self, script: str) -> int:
        subprocess.run(self.fills, capture_output=True, check=False)
        return super().submit(script)
