"""`opsctl init` where a person is at the terminal, where none is, and with options in the place of answers."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from opsctl.run.config.checks import find_problems
from opsctl.run.config.load import load_run_file
from tests.unit.cli.called import go_into, opsctl


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ".state"))
    return go_into(tmp_path, monkeypatch)


def at_a_terminal(folder: Path, *answers: str | signal.Signals) -> tuple[int, str]:
    """Type each answer, or send the signal, when a question stands there; the exit code and all that was shown."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "opsctl", "init", "mine"]
    child = subprocess.Popen(command, cwd=folder, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    out, read, left, deadline = b"", 0, list(answers), time.monotonic() + 100
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    out += os.read(ours, 65536)
                except OSError:  # the last one has closed its end
                    break
            elif left and out[read:].rstrip().endswith(b"]:"):
                read, answer = len(out), left.pop(0)
                if isinstance(answer, signal.Signals):
                    child.send_signal(answer)
                else:
                    os.write(ours, f"{answer}\n".encode())
        return child.wait(timeout=5), out.decode().replace("\r\n", "\n")
    finally:
        child.kill()
        os.close(ours)


def test_every_question_has_an_answer_that_enter_takes_and_a_wrong_one_is_asked_again(here: Path) -> None:
    code, shown = at_a_terminal(here, "own", "1.3B", "0", "", "K80", "H100", "350M", "", "12", "²", "16", "", "")
    assert code == 0, shown
    assert re.search(r"'1\.3B': .*\b64$", shown, re.MULTILINE), "which numbers are allowed"
    assert re.search(r"'K80': .*\bV100-16\b", shown)
    assert re.search(r"\b12: .*\b8\b", shown), "the size of a node"
    assert "Traceback" not in shown and "opsctl doctor" in shown
    loaded = load_run_file(here / "mine" / "run.toml", {})
    assert (loaded.file.slurm.nodes, loaded.file.slurm.gpus_per_node) == (2, 8)
    found = find_problems(loaded, files=False)
    assert found.problems == ()
    assert found.layout is not None and found.layout.world_size == 16


def test_the_demo_is_one_answer(here: Path) -> None:
    code, shown = at_a_terminal(here, "demo")
    assert code == 0
    assert "Slurm" not in shown.partition("]:")[0], "who tries the demo needs no Slurm yet"
    assert load_run_file(here / "mine" / "run.toml", {}).file.slurm.gpus_per_node == 2


def test_an_interrupt_leaves_nothing(here: Path) -> None:
    code, shown = at_a_terminal(here, "own", signal.SIGINT)
    assert code == 130, shown
    assert [one.name for one in here.iterdir()] == []


def test_nothing_is_asked_where_no_person_is_and_the_demo_is_made(here: Path) -> None:
    command = [sys.executable, "-m", "opsctl", "init", "mine"]
    done = subprocess.run(command, cwd=here, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert "]:" not in done.stderr, "no question"
    assert load_run_file(here / "mine" / "run.toml", {}).file.slurm.gpus_per_node == 2


def test_options_take_the_place_of_answers_and_the_rest_is_what_enter_would_take(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opsctl("init", "mine", "--params", "350M", "--gpu", "V100-32", "--gpus", "8", "--gpus-per-node", "4") == 0
    shown = capsys.readouterr().err
    assert "8 GPUs (V100-32) as TP " in shown
    days = re.search(r"DP \d+: (.*), as opsctl plan estimates", shown)
    opsctl("plan", "mine")
    assert days is not None and days[1] in capsys.readouterr().out
    written = tomllib.loads((here / "mine" / "run.toml").read_text())
    assert written["slurm"] == {
        **{"nodes": 2, "gpus_per_node": 4, "time": "20:00:00", "exit_margin": "0:10:00"},
    }
    assert written["trainer"]["fp16"] is True
    assert written["trainer"]["train_samples"] == 20 * 350_000_000 // 2048
    assert find_problems(load_run_file(here / "mine" / "run.toml", {}), files=False).problems == ()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--params", "175B", "--gpu", "V100-16", "--gpus", "8"), "nothing fits 8 GPUs of 16 GB"),
        (("--params", "1T", "--gpus", "2048"), "348.68B"),
        (("--params", "10M"), "91.629M"),
        (("--gpus", "12"), r"\b12\b.*\b8\b"),
        (("--gpu", "K80"), "memory_gb.*peak_tflops"),
        (("--gpus", "8", "--time", "soon"), "--time soon"),
    ],
)
def test_options_that_cannot_be_are_refused_and_nothing_is_made(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    assert opsctl("init", "mine", *words) == 2
    assert re.search(expected, capsys.readouterr().err)
    assert [one.name for one in here.iterdir()] == []
