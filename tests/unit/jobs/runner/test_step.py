"""The step: its command line and what is done while it runs. A shell stands in for srun; cluster tests have it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from opsctl.jobs.runner import step as step_module
from opsctl.jobs.runner.hang_watch import HangWatch
from opsctl.jobs.runner.launch import Launch, launchers_python, trainer_words
from opsctl.jobs.runner.main_log import MainLog
from opsctl.jobs.runner.own_lease import LeaseHeartbeat
from opsctl.jobs.runner.step import Step
from opsctl.jobs.runner.task import request_stop
from opsctl.jobs.signals import Signals, noted_signals
from opsctl.run.attempts.outcome import LauncherExit
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.lines import is_of_an_iteration
from opsctl.run.programs import command
from opsctl.run.programs.progress import Translator
from opsctl.run.render.batch import LARGEST_BYTES
from opsctl.run.state.lease import OwnLease, take


def start(
    tmp_path: Path,
    script: str,
    signals: Signals | None = None,
    leave_s: float = 60,
    left: bool = False,
    heartbeat: LeaseHeartbeat | None = None,
) -> Step:
    return Step(
        ["/bin/sh", "-c", script],
        {"PATH": "/usr/bin:/bin", "D": str(tmp_path)},
        MainLog(tmp_path, tmp_path / "main_log.txt", copy_to_fd=None),
        signals or Signals(),
        tmp_path,
        tmp_path / "stop-request",
        has_left=lambda: left,
        heartbeat=heartbeat,
        leave_s=leave_s,
    )


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "main_log.txt").read_text()


def launch_of(step_script: str, *python: str) -> Launch:
    folder = Path("/out/logs/attempts/7")
    return Launch(
        step_script=step_script,
        python=python,
        nodes=2,
        cpus_per_task=16,
        attempt_folder=folder,
        words=trainer_words(2, 4, "x01", 12345, folder, ("--lr", "1e-3")),
        variables={},
        revision=3,
    )


def test_the_command_gives_every_option_whole() -> None:
    words = launch_of("echo 1", "/venv/bin/python", "-P").command()
    srun, launcher = words[: words.index("/bin/bash")], words[words.index("step.sh") + 1 :]
    assert srun[0] == "srun"
    assert {
        "--nodes=2",
        "--ntasks=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=16",
        "--kill-on-bad-exit=1",
        "--wait=60",
    } <= set(srun)
    assert launcher == [
        *("/venv/bin/python", "-P", "-u", "-m", "trainer.launch"),
        *("--nnodes", "2", "--nproc-per-node", "4", "--master-addr", "x01", "--master-port", "12345"),
        *("--attempt-folder", "/out/logs/attempts/7", "--", "--lr", "1e-3"),
    ]


def test_the_step_scripts_text_runs_with_the_launcher_as_its_arguments_and_no_command_line_shows_it() -> None:
    text = """#!/bin/bash
set -euo pipefail
export SECRET='it'\\''s $(touch /nowhere/pwned) "`x`"'
trap : TERM INT USR1
"$@" 2>&1 | cat
"""
    program = 'echo "$SECRET|$OPSCTL_ATTEMPT_FOLDER|$OPSCTL_REVISION|${OPSCTL_STEP_SCRIPT-gone}|$0|$*"; exit 7'
    launch = launch_of(text, "/bin/sh", "-c", program)
    words = launch.command()
    assert not any("SECRET" in word for word in words if word != program)
    done = subprocess.run(
        words[words.index("/bin/bash") :], env=launch.environment(), capture_output=True, text=True, timeout=20
    )
    secret = """it's $(touch /nowhere/pwned) "`x`\""""
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.startswith(f"{secret}|/out/logs/attempts/7|3|gone|-u|-m trainer.launch --nnodes 2")


def test_the_largest_step_script_can_be_handed_over(tmp_path: Path) -> None:
    text = "#" * (LARGEST_BYTES - 7) + "\nexit 3"
    launch = launch_of(text, "true")
    words = launch.command()
    assert subprocess.run(words[words.index("/bin/bash") :], env=launch.environment(), timeout=20).returncode == 3


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143)])
def test_the_real_exit_status_is_kept(tmp_path: Path, script: str, code: int) -> None:
    assert start(tmp_path, f"echo out; echo err >&2; {script}").run() == code
    assert sorted(log_of(tmp_path).splitlines()) == ["err", "out"]


def test_lines_appear_while_the_step_runs(tmp_path: Path) -> None:
    step = start(tmp_path, 'echo one; while [ ! -e "$D/seen" ]; do sleep 0.05; done; echo two')
    runner = threading.Thread(target=step.run)
    runner.start()
    deadline, log = time.monotonic() + 60, tmp_path / "main_log.txt"
    while not (log.exists() and log_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.02)
    said = log_of(tmp_path)
    (tmp_path / "seen").touch()
    runner.join(60)
    assert said == "one\n"
    assert log_of(tmp_path) == "one\ntwo\n"


def test_a_signal_becomes_a_stop_request_once_and_is_not_sent_on(tmp_path: Path) -> None:
    script = 'trap "echo got-it" USR1 TERM; echo up; while [ ! -e "$D/stop-request" ]; do sleep 0.05; done; sleep 0.5'
    with noted_signals() as signals:
        step = start(tmp_path, script, signals)

        def send() -> None:
            for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
                os.kill(os.getpid(), number)
                time.sleep(0.1)

        sender = threading.Timer(0.5, send)
        sender.start()
        assert step.run() == 0
        sender.join()
    assert signals.received == [signal.SIGUSR1, signal.SIGTERM] and signals.ended_at is not None
    assert log_of(tmp_path).count(str(tmp_path / "stop-request")) == 1
    assert "got-it" not in log_of(tmp_path)


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with noted_signals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_asking_twice_leaves_the_first_request(tmp_path: Path) -> None:
    path = tmp_path / "attempt" / "stop-request"
    assert request_stop(tmp_path, path, "first")
    assert not request_stop(tmp_path, path, "second")
    assert "first" in path.read_text()


@pytest.mark.parametrize("how", ["line", "report"])
def test_a_step_that_does_not_leave_is_ended(tmp_path: Path, how: str) -> None:
    said = "printf '[default0]:[Detected kill sw'; sleep 0.3; echo 'itch at /k. Exiting] datetime: now';"
    script = f"{said if how == 'line' else ''} exec sleep 60"
    begin = time.monotonic()
    step = start(tmp_path, script, leave_s=0.5, left=how == "report")
    assert step.run() == 143 and step.ended_hard
    assert time.monotonic() - begin < 40  # of the sixty that it would stay
    assert re.search(r"^opsctl: .* 0 s ago", log_of(tmp_path), re.MULTILINE)


def test_a_step_that_resists_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "SRUN_END_S", 0.5)
    code = start(tmp_path, "trap '' TERM; sleep 60 & wait; sleep 60", leave_s=0.2, left=True).run()
    assert code == 137


def test_a_step_that_leaves_in_time_is_left_alone(tmp_path: Path) -> None:
    step = start(tmp_path, "echo '[Detected kill switch at /k. Exiting]'; sleep 0.5", leave_s=5)
    assert step.run() == 0 and not step.ended_hard


@pytest.mark.parametrize("leaves", [True, False])
def test_a_step_whose_lease_was_taken_is_asked_to_leave_and_ended_when_it_does_not(
    tmp_path: Path, leaves: bool
) -> None:
    tmp_path.chmod(0o750)
    paths = RunPaths(tmp_path)
    own = take(paths, "a", 7, "ann", lambda _: None)
    assert isinstance(own, OwnLease)
    asked = 'n=0; while [ ! -e "$D/stop-request" ] && [ $n -lt 400 ]; do n=$((n+1)); sleep 0.05; done; echo saw-it;'
    begin = time.monotonic()
    with LeaseHeartbeat(own, every_s=0.05) as heartbeat:
        step = start(tmp_path, f"{asked} {'exit 0' if leaves else 'exec sleep 60'}", leave_s=0.5, heartbeat=heartbeat)
        assert isinstance(take(paths, "b", 8, "ben", lambda _: "no heartbeat for 180 s"), OwnLease)
        code = step.run()
    said = log_of(tmp_path)
    assert code == (0 if leaves else 143) and time.monotonic() - begin < 40
    assert said.count("job 8 of ben") == 1 and "saw-it" in said
    assert "job 8 of ben" in (tmp_path / "stop-request").read_text()
    assert step.ended_hard is not leaves


def test_a_heartbeat_that_fails_is_said_in_the_log_and_ends_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir(mode=0o750)
    own = take(RunPaths(run), "a", 7, "ann", lambda _: None)
    assert isinstance(own, OwnLease)
    run.rename(tmp_path / "moved")
    with LeaseHeartbeat(own, every_s=0.02) as heartbeat:
        assert start(tmp_path, "sleep 1; echo trained", heartbeat=heartbeat).run() == 0
    said = log_of(tmp_path)
    assert said.count("No such file") == 1 and said.count("\n") == 2 and said.endswith("trained\n")


def test_lost_nodes_are_noted_also_when_the_words_come_in_pieces(tmp_path: Path) -> None:
    step = start(tmp_path, "printf 'srun: error: Node fail'; sleep 0.3; echo 'ure on x02'; exit 143")
    step.run()
    assert step.lost_nodes == ["x02"]


def test_the_launcher_that_failed_first_is_noted_not_those_that_srun_ended_for_it(tmp_path: Path) -> None:
    said = "srun: error: node%s: task%s: Exited with exit code %s\\n"
    script = f"printf '{said}' 2 ' 1' 143 >&2; printf '{said}' '[3-4]' 's 2-3' 127 >&2; printf '{said}' 1 ' 0' 1 >&2"
    step = start(tmp_path, script)
    step.run()
    assert step.first_exit == LauncherExit("node[3-4]", 127)


@pytest.mark.parametrize("environment", [None, "/apps/env.sh"])
def test_modules_that_somebody_put_into_the_working_folder_are_not_the_launchers(
    tmp_path: Path, environment: str | None
) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").touch()
    (tmp_path / "trainer" / "launch.py").write_text("print('planted')")
    words = [sys.executable, *launchers_python(environment)[1:], "-u", "-m", "trainer.launch", "--help"]
    answer = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "planted" not in answer.stdout and "--attempt-folder" in answer.stdout


def test_the_steps_of_another_program_are_signs_of_life_for_the_watch_over_hangs(tmp_path: Path) -> None:
    heard: list[bytes] = []
    kind = command.kind_of(None, [], r"step (?P<iteration>\d+) loss (?P<loss>\S+)", [])
    watch = SimpleNamespace(heard=heard.append, check=lambda: None, news=list, ends=False)
    step = Step(
        ["/bin/sh", "-c", "echo step 7 loss 2.5"],
        {"PATH": "/usr/bin:/bin"},
        MainLog(tmp_path, tmp_path / "main_log.txt", copy_to_fd=None),
        Signals(),
        tmp_path,
        tmp_path / "stop-request",
        has_left=lambda: False,
        hangs=cast(HangWatch, watch),
        progress=Translator(kind.progress, 80),
    )
    assert step.run() == 0
    assert any(map(is_of_an_iteration, b"".join(heard).decode().splitlines()))


@pytest.mark.parametrize("is_told", [False, True], ids=["nothing asked", "Slurm ends the job"])
def test_the_rest_of_a_step_is_killed_after_a_launcher_failed_unless_the_job_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """Its ranks can save nothing without the failed ones; after a signal to the job they may."""
    monkeypatch.setattr(step_module, "FOLLOW_S", 0.1)
    scancel = tmp_path / "scancel"
    scancel.write_text('#!/bin/sh\necho "$@" > "$D/called"\n')
    scancel.chmod(0o755)
    signals = Signals()
    if is_told:
        signals.note(signal.SIGTERM, None)
    lines = "srun: error: node2: task 1: Exited with exit code 1\\nsrun: Terminating StepId=12.3\\n"
    waits = '[ -e "$D/called" ] && break; sleep 0.05'
    script = f"printf '{lines}'; for i in $(seq {10 if is_told else 600}); do {waits}; done; exit 1"
    step = Step(
        ["/bin/sh", "-c", script],
        {"PATH": f"{tmp_path}:/usr/bin:/bin", "D": str(tmp_path)},
        MainLog(tmp_path, tmp_path / "main_log.txt", copy_to_fd=None),
        signals,
        tmp_path,
        tmp_path / "stop-request",
        has_left=lambda: False,
    )
    assert step.run() == 1 and step.first_exit == LauncherExit("node2", 1)
    called = tmp_path / "called"
    assert called.exists() != is_told
    assert is_told or called.read_text().split()[-2:] == ["--signal=KILL", "12.3"]


def test_a_scancel_that_hangs_does_not_outlive_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_module, "FOLLOW_S", 0.0)
    scancel = tmp_path / "scancel"
    scancel.write_text('#!/bin/sh\necho $$ > "$D/called"\nexec sleep 600\n')
    scancel.chmod(0o755)
    lines = "srun: error: node2: task 1: Exited with exit code 1\\nsrun: Terminating StepId=12.3\\n"
    script = f"printf '{lines}'; until [ -s \"$D/called\" ]; do sleep 0.05; done; exit 1"
    step = Step(
        ["/bin/sh", "-c", script],
        {"PATH": f"{tmp_path}:/usr/bin:/bin", "D": str(tmp_path)},
        MainLog(tmp_path, tmp_path / "main_log.txt", copy_to_fd=None),
        Signals(),
        tmp_path,
        tmp_path / "stop-request",
        has_left=lambda: False,
    )
    assert step.run() == 1
    assert not Path("/proc", (tmp_path / "called").read_text().strip()).exists()
