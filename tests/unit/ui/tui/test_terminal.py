"""`opsctl status --watch` on a real terminal: it comes, goes on whatever happens to the run, and leaves no trace."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.run.config.load import load_run_file
from opsctl.run.state.identity import make_run_id
from opsctl.run.state.revisions import publish
from tests.on_terminal import WAIT_S, Terminal
from tests.tiny_run import ready, write_run

LINE = " iteration {n}/ 500 | consumed samples: {n} | elapsed time per iteration (s): 2.0 | lm loss: 5.0 |\n"
WATCH = ("status", "--watch")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A published run with a log."""
    run = load_run_file(write_run(tmp_path))
    publish(ready(run))
    make_run_id(run.paths)
    log = tmp_path / "output" / "logs" / "main_log.txt"
    log.parent.mkdir()
    log.write_text("".join(LINE.format(n=n) for n in range(1, 8)))
    return tmp_path


@pytest.fixture
def started() -> Iterator[list[Terminal]]:
    """The terminals of a test, to be ended with it."""
    found: list[Terminal] = []
    yield found
    for one in found:
        with contextlib.suppress(OSError):
            one.child.kill()
        one.child.wait(timeout=30)


def test_it_shows_the_run_through_all_that_happens_to_it_and_q_leaves(folder: Path, started: list[Terminal]) -> None:
    terminal = Terminal(folder, *WATCH, COLUMNS="80", LINES="24")  # as some shells export them
    started.append(terminal)
    terminal.until("7 of 500")
    assert "UNKNOWN: " in terminal.shown and "\x1b[31" not in terminal.shown
    log = folder / "output" / "logs" / "main_log.txt"
    log.with_suffix(".new").write_text("".join(LINE.format(n=n) for n in range(1, 4)))
    log.with_suffix(".new").replace(log)
    terminal.press("l")
    terminal.until("3 of 500")
    terminal.resize(5, 20)
    os.killpg(terminal.child.pid, signal.SIGWINCH)
    terminal.until("…")
    terminal.resize(30, 100)
    os.killpg(terminal.child.pid, signal.SIGWINCH)
    (folder / "output").rename(folder / "gone")
    (folder / "run.toml").rename(folder / "gone.toml")
    terminal.press("l")
    terminal.until("cannot look: ")
    (folder / "gone").rename(folder / "output")
    (folder / "gone.toml").rename(folder / "run.toml")
    terminal.press("l")
    terminal.until("Slurm: ")
    terminal.press("q")
    assert terminal.ended() == 0
    assert "\x1b[?1049l" in terminal.shown and "\x1b[?25h" in terminal.shown  # the screen before it, and the cursor
    assert termios.tcgetattr(terminal.ours)[3] == terminal.settings[3]


@pytest.mark.parametrize(
    "before",
    [pytest.param("", marks=pytest.mark.nightly), "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"],
    ids=["SIGHUP", "SIGHUP ignored"],
)
def test_it_ends_with_its_terminal(folder: Path, started: list[Terminal], before: str) -> None:
    terminal = Terminal(folder, *WATCH, before=before)
    started.append(terminal)
    terminal.until("7 of 500")
    os.close(terminal.ours)
    terminal.child.wait(timeout=WAIT_S)


@pytest.mark.nightly
def test_all_runs_are_watched_too(folder: Path, started: list[Terminal]) -> None:
    terminal = Terminal(folder, *WATCH, "--all")
    started.append(terminal)
    terminal.until("no runs: ")
    terminal.press("q")
    assert terminal.ended() == 0


def test_a_run_that_is_not_there_is_one_line_and_no_screen(tmp_path: Path, started: list[Terminal]) -> None:
    terminal = Terminal(tmp_path, *WATCH, "nowhere")
    started.append(terminal)
    terminal.until("'nowhere'")
    assert terminal.ended() == 2 and "\x1b[?1049h" not in terminal.shown


def test_where_nothing_can_be_drawn_it_is_refused(folder: Path, started: list[Terminal]) -> None:
    terminal = Terminal(folder, *WATCH, TERM="dumb")
    started.append(terminal)
    terminal.until("--watch")
    assert terminal.ended() == 2 and "\x1b" not in terminal.shown
