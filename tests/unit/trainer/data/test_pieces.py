"""Files cut into pieces: every line and row once, whatever the cut, and errors with the number of the line."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from trainer.data import pieces as cutting
from trainer.data.corpus import Choice, Corpus, Position
from trainer.data.pieces import Skipped
from trainer.formats.distribution import install_command
from trainer.formats.errors import DataError


def cut(monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    monkeypatch.setattr(cutting, "PIECE_BYTES", piece_bytes)


def texts(path: Path | str, key: str = "text", start: Position | None = None) -> list[str]:
    corpus = Corpus([str(path)], Choice(key))
    pieces = corpus.pieces(start) if start else corpus.pieces()
    return [text for placed in pieces for text in placed.piece.texts(Skipped())]


@pytest.fixture
def written(tmp_path: Path) -> tuple[list[str], bytes]:
    draw = random.Random(1)
    wanted = ["".join(draw.choices('aé漢\n"\\ ', k=draw.randrange(1, 60))) for _ in range(30)]
    objects = [json.dumps({"n": 1, "text": text}, ensure_ascii=bool(at % 2)) for at, text in enumerate(wanted)]
    raw = "\n".join(objects).encode()
    return wanted, raw


@pytest.mark.parametrize("piece_bytes", [1, 7, 64, 1000, 1 << 20])
@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_every_line_comes_once_and_in_order_whatever_the_cut(
    written: tuple[list[str], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, kind: str
) -> None:
    wanted, raw = written
    cut(monkeypatch, piece_bytes)
    monkeypatch.setattr("trainer.data.pieces._BLOCK_BYTES", 97)
    half = len(raw) // 2
    packed = {
        "plain": raw,
        "gzip": gzip.compress(raw[:half]) + b"\0" * 5 + gzip.compress(raw[half:]),
        "zstd": zstandard.compress(raw[:half]) + zstandard.compress(raw[half:]),
    }
    (tmp_path / "c").write_bytes(packed[kind])
    assert texts(tmp_path / "c") == wanted
    pieces = list(Corpus([str(tmp_path / "c")], Choice()).pieces())
    assert [placed.read_bytes for placed in pieces] == sorted(placed.read_bytes for placed in pieces)
    # From any place on comes what is behind it.
    for placed in pieces[:: max(1, len(pieces) // 5)]:
        behind = texts(tmp_path / "c", start=placed.behind)
        assert behind == wanted[len(wanted) - len(behind) :]


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_an_error_names_the_line_of_the_file_though_it_is_in_a_late_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    cut(monkeypatch, 50)
    raw = b'{"text": "some words"}\n\n' * 30 + b"broken\n" + b'{"text": "more"}\n' * 9
    packed = {"plain": raw, "gzip": gzip.compress(raw), "zstd": zstandard.compress(raw)}
    (tmp_path / "c").write_bytes(packed[kind])
    with pytest.raises(DataError, match=r"/c, line 61\b"):
        texts(tmp_path / "c")


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
@pytest.mark.parametrize("harm", ["cut", "flipped", "followed"])
def test_a_stream_that_is_cut_short_or_damaged_is_named_with_the_line(
    written: tuple[list[str], bytes], tmp_path: Path, kind: str, harm: str
) -> None:
    raw = written[1]
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    packed = gzip.compress(raw) if kind == "gzip" else compressor.compress(raw)
    middle = len(packed) // 2
    harmed = {
        "cut": packed[:-3],
        "flipped": packed[:middle] + bytes([packed[middle] ^ 0x55]) + packed[middle + 1 :],
        "followed": packed + b"rubbish",
    }
    (tmp_path / "c").write_bytes(harmed[harm])
    with pytest.raises(DataError, match=rf"/c\b.*\b{kind}\b.*\bline \d+"):
        texts(tmp_path / "c")


def slowly(line: bytes) -> str | None:
    """Return a line's text by Python's own JSON; None if it is refused."""
    try:
        return cutting._text(line, 2, "text", "c")
    except DataError:
        return None


@given(
    value=st.dictionaries(
        st.sampled_from(["text", "id", 'k"\n']),
        st.text(max_size=12)
        | st.text(alphabet="\ud800\udc00\ude00a", max_size=4)
        | st.integers()
        | st.floats()
        | st.none(),
    ),
    ascii_only=st.booleans(),
)
def test_a_text_is_what_pythons_own_json_makes_of_it(value: dict[str, object], ascii_only: bool) -> None:
    line = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    skipped, wanted = Skipped(), slowly(line)
    try:
        found = cutting.texts_of_lines(line, "text", "c", lambda: 1, skipped)
    except DataError:
        assert wanted is None
    else:
        # Of other keys' values bytes that are no UTF-8 are passed over.
        assert wanted is None or (found, skipped["empty"]) == ([wanted] if wanted else [], wanted == "")


def test_a_mark_of_byte_order_and_line_ends_of_windows_are_taken(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes('\ufeff{"text": "a"}\r\n{"text": "b"}\r\n'.encode())
    assert texts(tmp_path / "c") == ["a", "b"]


def test_a_key_may_be_any_text_and_a_file_have_any_name(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\n$(id)"
    with open(name, "wb") as file:  # noqa: PTH123
        file.write(json.dumps({'a"\\b\n': "x"}).encode())
    assert texts(os.fsdecode(name), 'a"\\b\n') == ["x"]


def test_zstd_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c").write_bytes(zstandard.compress(b"{}"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(DataError, match=rf"\bzstandard\b.*{re.escape(install_command('data'))}"):
        texts(tmp_path / "c")


ROWS = [f"row {number} é" * (number % 7) if number % 11 else None for number in range(100)]
WANTED = [text for text in ROWS if text]


def write_rows(path: Path, batch: int = 64, kind: Any = None) -> None:
    column = pyarrow.array(ROWS, kind or pyarrow.string())
    parquet.write_table(pyarrow.table({"id": list(range(len(ROWS))), "text": column}), path, row_group_size=batch)


@pytest.mark.parametrize("piece_bytes", [1, 500, 1 << 20])
@pytest.mark.parametrize("batch", [1, 64, 1000])
def test_rows_come_once_and_in_order_whatever_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int, batch: int
) -> None:
    cut(monkeypatch, piece_bytes)
    write_rows(tmp_path / "c", batch)
    skipped = Skipped()
    pieces = [placed.piece for placed in Corpus([str(tmp_path / "c")], Choice()).pieces()]
    assert [text for piece in pieces for text in piece.texts(skipped)] == WANTED
    assert skipped["empty"] == len(ROWS) - len(WANTED)


def test_long_texts_of_a_column_are_read(tmp_path: Path) -> None:
    write_rows(tmp_path / "c", kind=pyarrow.large_string())
    assert texts(tmp_path / "c") == WANTED


def test_another_column_is_refused_with_those_there_are(tmp_path: Path) -> None:
    write_rows(tmp_path / "c")
    with pytest.raises(DataError, match=r"/c\b.*'body'.*\bid, text\b.*--json-key"):
        texts(tmp_path / "c", "body")
    with pytest.raises(DataError, match=r"/c\b.*'id'.*\bint64\b"):
        texts(tmp_path / "c", "id")


def test_a_table_that_is_cut_short_is_refused_by_name(tmp_path: Path) -> None:
    write_rows(tmp_path / "c")
    whole = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(DataError, match=r"/c\b.*\brow \d+"):
        texts(tmp_path / "c")


def test_rows_that_are_no_utf8_are_refused_by_name(tmp_path: Path) -> None:
    raw = pyarrow.array([b"good", b"b\xffd"], pyarrow.binary())
    forged = pyarrow.Array.from_buffers(pyarrow.string(), 2, raw.buffers())
    parquet.write_table(pyarrow.table({"text": forged}), tmp_path / "c")
    with pytest.raises(DataError, match=r"/c\b.*UTF-8"):
        texts(tmp_path / "c")


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "c")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=rf"\bpyarrow\b.*{re.escape(install_command('data'))}"):
        texts(tmp_path / "c")
