"""The notes beside prepared data, written and read back."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.formats.data.vocabulary_files import (
    DataNotes,
    Noted,
    SkippedCounts,
    notes_path,
    read_notes,
)
from trainer.formats.errors import DataError
from trainer.formats.json_text import json_file_text

COUNTS = st.integers(0, 2**53)
NUMBERS = st.floats(0, 1e9)
NOTES = st.builds(
    DataNotes,
    **dict.fromkeys(["documents", "tokens", "text_bytes", "vocab_size"], COUNTS),
    **dict.fromkeys(["bytes_per_token", "entropy_nats", "ln_vocab_nats"], NUMBERS),
    **dict.fromkeys(["dtype", "engine", "tokenizer", "tokenizer_sha256", "bin_sha256"], st.text()),
    eod=st.none() | COUNTS,
    skipped=st.builds(SkippedCounts, COUNTS, COUNTS, COUNTS),
)


@given(NOTES)
def test_any_notes_are_read_back(tmp_path_factory: pytest.TempPathFactory, notes: DataNotes) -> None:
    prefix = tmp_path_factory.getbasetemp() / "corpus.v2_text_document"
    notes_path(prefix).write_text(json_file_text(notes))
    assert msgspec.json.decode(notes_path(prefix).read_bytes(), type=DataNotes) == notes
    known = (notes.vocab_size, notes.eod, notes.tokenizer, notes.entropy_nats, notes.tokenizer_sha256)
    assert read_notes(prefix) == Noted(*known)


def test_what_somebody_else_noted_says_what_it_can(tmp_path: Path) -> None:
    assert read_notes(tmp_path / "p") is None
    (tmp_path / "p.json").write_text('{"vocab_size": "many", "eod": 3}')
    assert read_notes(tmp_path / "p") == Noted(None, 3, "unknown")


@pytest.mark.parametrize(("text", "fact"), [("", "JSON"), ("{", "JSON"), ("[1]", "list")])
def test_notes_that_are_no_object_are_refused_by_name(tmp_path: Path, text: str, fact: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(DataError, match=fact) as refusal:
        read_notes(tmp_path / "p")
    assert str(tmp_path / "p.json") in str(refusal.value)
