"""Reading a log from its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.logs import tail
from opsctl.logs.tail import last_lines, lines_backwards
from tests.reading import read_so_far_bytes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text("ab\n"), chunk=st.integers(1, 9))
def test_lines_come_backwards_whatever_the_chunk(tmp_path: Path, text: str, chunk: int) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail, "CHUNK_BYTES", chunk)
        found = list(lines_backwards(path))
    assert found == (text.split("\n")[::-1] if text else [])


def test_a_missing_log_has_no_lines(tmp_path: Path) -> None:
    assert list(lines_backwards(tmp_path / "none")) == []


def test_a_line_that_begins_before_the_limit_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("first line\nsecond\nthird\n")
    assert list(lines_backwards(path, limit_bytes=15)) == ["", "third", "second"]


def test_only_lines_with_one_of_the_marks_are_given(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a 1\nb 2\nc 3\n")
    assert list(lines_backwards(path, containing=[b"a", b"3"])) == ["c 3", "a 1"]


def test_bytes_that_are_no_text_do_not_stop_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\r\nend\r\n")
    assert list(lines_backwards(path))[1:] == ["end", "��"]


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
def test_the_last_lines_are_those_that_tail_prints(tmp_path: Path, text: str, count: int, expected: list[str]) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    assert last_lines(path, count) == expected


def test_what_lies_before_the_end_of_a_big_log_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.seek(2**26)  # a hole: the size of a big log without its blocks
        file.write(b"\nlast\n")
    before = read_so_far_bytes()
    assert last_lines(path, 1) == ["last"]
    assert read_so_far_bytes() - before < path.stat().st_size / 100
