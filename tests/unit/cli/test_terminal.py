"""Test what stands in a run's files is shown on a terminal and never obeyed, whichever command shows it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.run.attempts.events import Attempt, append_opened
from opsctl.run.config.load import load_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.identity import make_run_id
from opsctl.run.state.revisions import publish
from tests.tiny_run import ready, write_run
from tests.unit.cli.called import answer, without_slurm
from trainer.formats.attempt.attempt_records import Failure

#: Sets the title, clears the screen, turns what follows around; the same in one byte; a bell; a line of its own.
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\ropsctl: fine"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\ropsctl: fine"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A published run whose log, attempts and kill switch say hostile things."""
    run = load_run_file(write_run(tmp_path))
    publish(ready(run))
    make_run_id(run.paths)
    paths = RunPaths(run.paths.output)
    log = paths.main_log
    log.parent.mkdir(exist_ok=True)
    log.write_text(
        f"said\t{HOSTILE}\n"
        " iteration 7/ 500 | consumed samples: 56 | elapsed time per iteration (s): 2.0 | lm loss: 5.0 |\n"
    )
    failed = Failure(rank=3, node=f"n{HOSTILE}", message=HOSTILE, exit_code=1)
    attempt = Attempt(number=1, id="a", job_id=12, reason=HOSTILE, lost_nodes=(HOSTILE,), first_failure=failed)
    append_opened(paths, attempt)
    closing = {"event": "closed", "id": "a", "reason": HOSTILE, "closed_by": "job", "note": HOSTILE}
    with (paths.state / "attempts.jsonl").open("a") as file:
        file.write(json.dumps({**closing, "first_failure": {"rank": 3, "node": HOSTILE, "message": HOSTILE}}) + "\n")
    paths.kill_switch.write_text(json.dumps({"by": HOSTILE, "host": HOSTILE, "why": HOSTILE}))
    return tmp_path


def on_a_terminal(folder: Path, *words: str) -> str:
    """All that `opsctl WORDS` sends to a terminal that it is given; no Slurm is to be had."""
    ours, its = pty.openpty()
    environment = {**without_slurm(folder), "NO_COLOR": "1"}
    child = subprocess.Popen(
        [sys.executable, "-m", "opsctl", *words], cwd=folder, env=environment, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    out = b""
    try:
        while piece := os.read(ours, 65536):
            out += piece
    except OSError:  # the last one has closed its end
        pass
    os.close(ours)
    child.wait(timeout=30)
    return out.decode().replace("\r\n", "\n")


def obeys_nothing(out: str) -> bool:
    return bool(out) and all(character.isprintable() or character in "\n\t" for character in out)


@pytest.mark.parametrize(
    "words",
    [
        ("attempts",),
        ("kill-switch", "show"),
        ("kill-switch", "trigger"),
        ("watch", "training", "--no-log"),
        ("plan", "/none/\x1b[2J\x9b.toml"),
        (f"no{HOSTILE}",),
        ("attempts", "--json"),
        ("status", "--json"),
    ],
    ids=lambda words: " ".join(words).encode("unicode_escape").decode()[:30],
)
def test_no_command_prints_what_a_file_holds_as_it_is(folder: Path, words: tuple[str, ...]) -> None:
    found = answer(folder, *words)
    assert obeys_nothing(found.stdout + found.stderr)


def test_what_would_steer_the_terminal_is_there_to_be_read(folder: Path) -> None:
    log, status = on_a_terminal(folder, "logs"), on_a_terminal(folder, "status")
    assert f"said\t{SHOWN}\n" in log and obeys_nothing(log)
    assert r"\x1b]0;owned" in status and obeys_nothing(status)
    assert SHOWN in answer(folder, "attempts").stdout


def test_a_log_is_shown_in_the_same_way_to_what_reads_through_a_pipe(folder: Path) -> None:
    found = answer(folder, "logs").stdout
    assert SHOWN in found and "\x1b" not in found
