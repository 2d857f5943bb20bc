"""The error file of torch's launcher."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.elastic.multiprocessing.errors.error_handler import ErrorHandler

from trainer.formats.attempt.error_file import read_error_file, write_error_file


@given(st.text())
def test_what_is_left_is_read_back(message: str) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "error.json"
        write_error_file(file, message, at=1.7e9)
        assert read_error_file(file) == message


def test_what_torch_itself_leaves_is_read_and_ours_has_its_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchs, ours = tmp_path / "torchs.json", tmp_path / "ours.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(torchs))
    ErrorHandler().record_exception(ValueError("odd"))
    assert read_error_file(torchs) == "ValueError: odd"
    write_error_file(ours, "odd", at=1.9)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "copied.json"))
    ErrorHandler().dump_error_file(str(ours), 1)
    assert read_error_file(tmp_path / "copied.json") == "odd"


def test_a_text_in_place_of_the_object_is_read_and_damage_is_no_word(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    file.write_text('{"message": "plain", "timestamp": 1}')
    assert read_error_file(file) == "plain"
    for damaged in ("", "{", "[]", '{"other": 1}', '{"message": {"message": 1}}'):
        file.write_text(damaged)
        assert read_error_file(file) == ""
    assert read_error_file(tmp_path / "absent") == ""
