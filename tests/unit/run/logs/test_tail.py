"""Reading a log from its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.run.logs import line_text
from opsctl.run.logs.line_text import end_of_whole_lines, last_lines, lines_backwards, whole
from tests.reading import read_so_far_bytes

Opened = Callable[[Path], int]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Open a file for reading until the test ends."""
    fds: list[int] = []

    def open_it(path: Path) -> int:
        fds.append(os.open(path, os.O_RDONLY))
        return fds[-1]

    yield open_it
    for fd in fds:
        os.close(fd)


TEXTS = st.text("ab\n")
BLOCKS = st.integers(1, 9)
SMALL = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@SMALL
@given(text=TEXTS, block=BLOCKS)
def test_lines_come_backwards_whatever_the_block(tmp_path: Path, opened: Opened, text: str, block: int) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_text, "_BLOCK_BYTES", block)
        found = list(lines_backwards(opened(path)))
    assert found == (text.split("\n")[::-1] if text else [])


@SMALL
@given(text=TEXTS, block=BLOCKS, count=st.integers(0, 6), asked=st.sampled_from([None, "a"]))
def test_the_last_lines_are_the_same_whatever_the_block(
    tmp_path: Path, opened: Opened, text: str, block: int, count: int, asked: str | None
) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    lines = [line for line in text.removesuffix("\n").split("\n") if asked is None or asked in line] if text else []
    wanted = whole if asked is None else lambda line: line if asked in line else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_text, "_BLOCK_BYTES", block)
        assert list(last_lines(opened(path), count, wanted)) == (lines[-count:] if count else [])
        assert end_of_whole_lines(opened(path)) == text.rfind("\n") + 1


def test_a_line_that_begins_before_the_limit_is_left_out(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "log"
    path.write_text("first line\nsecond\nthird\n")
    assert list(lines_backwards(opened(path), limit_bytes=15)) == ["", "third", "second"]


def test_only_lines_with_one_of_the_marks_are_given(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "log"
    path.write_text("a 1\nb 2\nc 3\n")
    assert list(lines_backwards(opened(path), marks=[b"a", b"3"])) == ["c 3", "a 1"]


@SMALL
@given(text=st.text("ab\0\n"), block=BLOCKS)
def test_marked_lines_are_the_same_whatever_the_block(tmp_path: Path, opened: Opened, text: str, block: int) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    lines = text.replace("\0", "").split("\n")[::-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_text, "_BLOCK_BYTES", block)
        found = list(lines_backwards(opened(path), marks=[b"aba", b"bb"]))
    assert found == [line for line in lines if "aba" in line or "bb" in line]


def test_bytes_that_are_no_text_do_not_stop_the_reading(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\r\nend\r\n")
    assert list(lines_backwards(opened(path)))[1:] == ["end", "��"]


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ("", 3, []),
        ("a\nb\nc\n", 2, ["b", "c"]),
        ("a\nb\nc", 2, ["b", "c"]),
        ("\na", 5, ["", "a"]),
        ("a\n\n\n", 2, ["", ""]),
        ("a\n", 5, ["a"]),
        ("a\n", 0, []),
    ],
)
def test_the_last_lines_are_those_that_tail_prints(
    tmp_path: Path, opened: Opened, text: str, count: int, expected: list[str]
) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert list(last_lines(opened(path), count)) == expected


def test_what_lies_before_the_end_of_a_big_log_is_not_read(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.seek(2**26)  # a hole: the size of a big log without its blocks
        file.write(b"\nlast\n")
    before = read_so_far_bytes()
    assert list(last_lines(opened(path), 1)) == ["last"]
    assert read_so_far_bytes() - before < path.stat().st_size / 100


def with_holes(path: Path, *pieces: bytes | int) -> None:
    """Write a file of these texts and, for each number, a hole of that many bytes."""
    with path.open("wb") as file:
        for piece in pieces:
            if isinstance(piece, int):
                file.seek(piece, os.SEEK_CUR)
            else:
                file.write(piece)
        file.truncate()


def test_a_hole_as_large_as_any_disk_costs_nothing_and_shows_nothing(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "log"
    with_holes(path, b"first\nhalf", 2**42, b"of it\nlast\n")
    before = read_so_far_bytes()
    assert list(last_lines(opened(path), 5000)) == ["first", "halfof it", "last"]
    assert read_so_far_bytes() - before < 4 * 2**20


def test_a_log_that_ends_in_a_hole_is_read(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "log"
    with_holes(path, b"first\nlast\nhalf", 2**40)
    assert list(last_lines(opened(path), 5000)) == ["first", "last", "half"]
    with_holes(path, 2**40)
    assert list(last_lines(opened(path), 5000)) == []


def test_many_holes_between_lines_lose_none(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "log"
    texts = [f"line {number}\n".encode() for number in range(200)]
    with_holes(path, *[piece for number, text in enumerate(texts) for piece in (text, 4096 << (number % 12))])
    expected = [text.decode().rstrip("\n") for text in texts]
    assert list(last_lines(opened(path), 5000)) == expected
    assert list(last_lines(opened(path), 4)) == expected[-4:]


def test_nuls_that_stand_for_a_hole_are_not_shown(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n" + b"\0" * 300_000 + b"second\nthird" + b"\0" * 9 + b"\n")
    assert list(last_lines(opened(path), 9)) == ["first", "second", "third"]


def test_a_line_without_an_end_is_cut_with_what_it_lacks(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "log"
    bar, most = b"\r 10%" * 400_000, line_text.LONGEST_LINE_BYTES
    path.write_bytes(b"first\n" + bar + b"\nlast\n")
    said = list(last_lines(opened(path), 9))
    assert said == ["first", f"{bar[:most].decode()} ... and {len(bar) - most} bytes more", "last"]
    assert list(lines_backwards(opened(path)))[1:] == said[::-1]
