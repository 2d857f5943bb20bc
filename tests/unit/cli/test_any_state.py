"""Whatever a crash, a disk or a user's hand has made of any file of a run: one line, the right code, nothing lost."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

import pytest

from opsctl.cli import main
from opsctl.core.files.state_files import append_state
from opsctl.core.timestamps import now
from opsctl.run.attempts.events import Attempt, append_opened
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import kill_switch
from opsctl.run.state.alerts import Noted, acknowledge, note
from opsctl.run.state.chains import record_cancel
from opsctl.run.state.kill_switch import record_deactivation
from opsctl.run.state.requests import Audited, Request, ask
from opsctl.run.state.space import SpaceLine, WalkFound, WalkState, append_space, write_walk
from tests.tiny_run import write_checkpoint, write_run

#: Slurm's commands with an empty queue: what they are asked is not what is tried here.
SLURM = {
    "squeue": "exit 0",
    "sbatch": "cat > /dev/null; echo 12",
    "scancel": "exit 0",
    "sinfo": "exit 0",
    "sacct": "echo 'Slurm accounting storage is disabled' >&2; exit 1",
    "scontrol": "printf 'ClusterName = here\\nSlurmctldHost[0] = here\\nPrivateData = none\\n'",
}
READING = (
    ["status"],
    ["status", "--json"],
    ["watch", "training", "--no-log"],
    ["attempts"],
    ["logs", "-n", "5"],
    ["logs", "--rank", "0", "-n", "3"],
    ["kill-switch", "status"],
    ["queue"],
    ["checkpoints", "list"],
    ["submit", "--dry-run"],
    ["revise", "--dry-run"],
    ["cancel", "--dry-run"],
    ["status", "--all"],
    ["refill", "--dry-run"],
    ["on-call", "--since", "2h"],
    ["on-call", "--since", "2h", "--json"],
    ["alerts", "list", "--all"],
    ["request", "list"],
    ["request", "save", "--dry-run"],
    ["metrics"],
    ["cron", "status"],
    ["cron", "logs", "refill"],
)
CHANGING = (
    ["submit", "--after", "auto"],
    ["revise"],
    ["checkpoints", "repoint"],
    ["cancel"],
    ["kill-switch", "arm"],
    ["kill-switch", "trigger", "--no-wait"],
    ["kill-switch", "deactivate"],
    ["watch", "all", "--no-log", "--alert"],
    ["refill"],
    ["alerts", "ack", "--all", "--why", "mine"],
    ["alerts", "silence", "1:00:00"],
    ["request", "cancel-queued", "--no-wait"],
    ["request", "carry-out"],
    ["cron", "run", "progress"],
    ["cron", "start"],
    ["cron", "stop"],
)
WRONG = b'{"schema_version": "x", "id": 3, "number": "n", "event": [], "chain": "a", "path": 4, "name": [], "at": 7}\n'


def _other(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: os.truncate(path, max(1, path.stat().st_size // 2)),
    "emptied": lambda path: os.truncate(path, 0),
    "null": lambda path: path.write_bytes(b"null\n"),
    "a list": lambda path: path.write_bytes(b"[1, [2]]\n"),
    "wrong types": lambda path: path.write_bytes(WRONG),
    "another version": lambda path: path.write_bytes(b'{"schema_version": 99}\n'),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00\x1b[31m" * 50),
    "brackets": lambda path: path.write_bytes(b"[" * 100_000),
    "100 MB": lambda path: os.truncate(path, 100 << 20),
    "a folder": lambda path: _other(path, Path.mkdir),
    "a FIFO": lambda path: _other(path, os.mkfifo),
    "a link": lambda path: _other(path, lambda place: place.symlink_to("/etc/passwd")),
    "gone": lambda path: path.unlink(),
}


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The output folder of a run in the current folder that has one of every file."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in SLURM.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    for name in list(os.environ):
        if name.startswith(("SLURM", "OPSCTL")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OPSCTL_ANSWERS_AGE", "0")
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "account"))
    run = tmp_path / "run"
    write_run(run)
    monkeypatch.chdir(run)
    assert answer("submit")[0] == 0
    write_checkpoint(run, 50, 400)
    paths = RunPaths(run / "output")
    append_opened(paths, Attempt(number=1, id="a", job_id=13, opened_at=now(), user="root", revision="x"))
    folder = paths.attempt_folder(13)
    folder.mkdir(parents=True)
    for name, text in {
        "ranks-0.json": '[{"rank": 0, "node": "n"}]',
        "failure-0.json": '{"rank": 0, "exit_code": 1}',
        "exit.json": '{"reason": "finished", "iteration": 4}',
        "leaving.json": '{"reason": "kill-switch", "iteration": 4}',
        "n.out": "[default0]: iteration 4/ 100 | lm loss: 1.0 |\n",
    }.items():
        (folder / name).write_text(text)
    paths.main_log.write_text(" iteration 4/ 100 | elapsed time per iteration (s): 1.0 | lm loss: 1.0 |\n")
    (paths.checkpoints / "rollbacks.jsonl").write_text('{"from": 60, "to": 50, "by": "a"}\n')
    (paths.state / "lease.jsonl").write_text('{"event": "taken", "number": 1, "attempt": "a", "job_id": 13}\n')
    paths.kill_switch.write_text('{"by": "somebody"}')
    write_desk(paths)
    return paths.output


def write_desk(paths: RunPaths) -> None:
    """What findings, alerts, requests and looks at the disk leave."""
    record_cancel(paths, ["11"], queued_only=True)
    note(paths, [Noted(key="cron", severity="critical", text="the cron is dead", todo="opsctl cron start")], now())
    acknowledge(paths, ["cron"], "I look", now())
    record_deactivation(paths, kill_switch.state(paths))
    append_space(paths, [SpaceLine(name="all", at=now(), used_bytes=5, limit_bytes=9, how="statvfs")], now())
    write_walk(paths, WalkState(whole=WalkFound(began_at=now(), used_bytes=7)))
    ask(paths, Request(action="save", why="before the maintenance", owner="root", job="13", attempt="a"))
    append_state(paths.output, paths.audit, Audited(id="0", action="stop", outcome="done", words="it left", at=now()))


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"still busy after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def answer(*words: str) -> tuple[int, str, str]:
    """Return what a command ends with and prints; what escapes it fails the test."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(words))
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, out.getvalue(), err.getvalue()


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*") if not path.is_symlink()}


def _kept(before: bytes | None, after: bytes | None) -> bool:
    """Nothing of it is lost: who finds an attempt that is over adds a line that says so."""
    return after == before if before is None or after is None else after.startswith(before)


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_any_file_of_a_run_is_one_line_and_costs_no_other_file(output: Path, damage: str, share: int) -> None:
    """Each file meets three or four of the damages, each damage a quarter of the files; all pairs nightly."""
    files = [path.relative_to(output) for path in sorted(output.rglob("*")) if path.is_file()]
    assert len(files) > 20
    files = files[list(DAMAGE).index(damage) % share :: share]
    good = output.with_name("good")
    shutil.copytree(output, good)
    turn = list(DAMAGE).index(damage)  # so that each file meets other commands with each damage
    reading, changing = islice(cycle(READING), 2 * turn, None), islice(cycle(CHANGING), turn, None)
    for file in files:
        DAMAGE[damage](output / file)
        before = contents(output) if damage != "100 MB" else {}
        for words in (next(reading), next(reading), next(changing)):
            with within(20):
                code, out, err = answer(*words)
            what = f"{file} {damage}, {' '.join(words)}: {code} {err}"
            assert code in (0, 1, 2, 3) and "Traceback" not in err and "\x1b" not in out + err, what
            assert len(err.strip().splitlines()) <= 4, what
            assert words[0] != "watch" or code != 1 or out, what  # a failure must not pass for a finding
            if before and words[0] == "metrics":  # it continues the walk where it can: what comes next keeps that
                before = contents(output)
            elif before and words in READING:
                after = contents(output)
                assert all(_kept(data, after.get(path, b"")) for path, data in before.items()), what
        shutil.rmtree(output)
        shutil.copytree(good, output)
