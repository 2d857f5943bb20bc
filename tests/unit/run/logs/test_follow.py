"""Following a log while it is written, rotated, truncated and created."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.core.files.trusted import Untrusted, open_file
from opsctl.run.logs import follow as follow_module
from opsctl.run.logs import line_text
from opsctl.run.logs.follow import follow


class Script:
    """Changes of the log at each check that finds nothing new; following ends after the last step."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.heard: list[str] = []

    def __call__(self) -> None:
        if not self.steps:
            raise StopFollowing
        self.steps.pop(0)()

    def followed(
        self, path: Path, lines: int = 10, wanted: Callable[[str], str | None] = lambda line: line
    ) -> list[str]:
        """Return every line up to the script's end."""
        out: list[str] = []
        with contextlib.suppress(StopFollowing):
            out.extend(follow(path.parent, path, lines, self.heard.append, self, wanted))
        return out


class StopFollowing(Exception):
    """Raised at the end of the script."""


def append(path: Path, text: str) -> Callable[[], object]:
    def act() -> None:
        with path.open("a") as file:
            file.write(text)

    return act


def test_the_last_lines_come_first_and_then_what_is_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a\nb\nc\n")
    assert Script(append(log, "d\n"), append(log, "e\nf\n")).followed(log, 2) == ["b", "c", "d", "e", "f"]


def test_a_half_written_line_is_given_once_and_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a\nhal")
    assert Script(append(log, "f"), append(log, " a line\nmore")).followed(log) == ["a", "half a line"]


def test_a_log_that_does_not_exist_yet_is_waited_for_and_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = Script(lambda: None, append(log, "a\n"), append(log, "b\n"))
    assert script.followed(log) == ["a", "b"]
    assert str(log) in script.heard[0]


def test_a_rotated_log_is_read_to_its_end_and_then_the_new_one(tmp_path: Path) -> None:
    log, old = tmp_path / "log", tmp_path / "log.1"
    log.write_text("a\n")

    def rotate() -> None:
        append(log, "late\n")()
        log.rename(old)

    script = Script(rotate, append(old, "later\nhalf"), append(log, "new\n"))
    assert script.followed(log) == ["a", "late", "later", "half", "new"]
    assert len(script.heard) == 1 and str(log) in script.heard[0]


def test_a_log_replaced_in_one_step_loses_nothing(tmp_path: Path) -> None:
    log, beside = tmp_path / "log", tmp_path / "new"
    log.write_text("a\n")
    beside.write_text("b\n")

    def replace() -> None:
        append(log, "last\n")()
        beside.rename(log)

    assert Script(replace).followed(log) == ["a", "last", "b"]


def test_what_is_written_just_before_the_log_is_replaced_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, beside = tmp_path / "log", tmp_path / "new"
    log.write_text("a\n")
    beside.write_text("b\n")
    out: list[str] = []

    def open_and_write(root: Path, path: Path) -> int:
        """Continue writing right after a check that found nothing, before the check for another file."""
        if beside.exists() and list(out) == ["a"]:
            append(log, "last\n")()
            beside.rename(log)
        return open_file(root, path)

    monkeypatch.setattr(follow_module, "open_file", open_and_write)
    with contextlib.suppress(StopFollowing):
        out.extend(follow(tmp_path, log, 10, lambda _: None, Script()))
    assert out == ["a", "last", "b"]


def test_a_log_that_is_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a long line\nanother\n")
    script = Script(lambda: log.write_text("b\n"))
    assert script.followed(log, 1) == ["another", "b"]
    assert len(script.heard) == 1 and str(log) in script.heard[0]


def test_only_wanted_lines_are_counted_and_given(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("x 1\ny 2\nx 3\ny 4\ny 5\n")
    script = Script(append(log, "y 6\nx 7\n"))
    assert script.followed(log, 1, lambda line: line[2:] if line[0] == "x" else None) == ["3", "7"]


def test_a_half_line_that_grows_and_grows_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a\n")
    most = line_text.LONGEST_LINE_BYTES
    steps = [append(log, "=" * most) for _ in range(20)]
    followed = Script(*steps, append(log, "\nb\n")).followed(log)
    assert followed == [
        "a",
        "=" * most + f" ... and {19 * most} bytes more",
        "b",
    ]


def test_a_hole_that_a_log_grows_by_is_passed_over(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a\n")

    def skip_and_write() -> None:
        with log.open("r+b") as file:
            file.seek(2**42)
            file.write(b"b\n")

    assert Script(skip_and_write, lambda: os.truncate(log, 2**43), append(log, "c\n")).followed(log) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_plain_file_is_refused_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    log, elsewhere = tmp_path / "log", tmp_path / "elsewhere"
    elsewhere.write_text("secret\n")
    if kind == "link":
        log.symlink_to(elsewhere)
    elif kind == "fifo":
        os.mkfifo(log)
    else:
        log.mkdir()
    with pytest.raises(Untrusted) as refused:
        next(follow(tmp_path, log, 10, lambda _: None, Script()))
    assert refused.value.filename == str(log) and "\n" not in str(refused.value)
