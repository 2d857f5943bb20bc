"""The input of a preparation excludes its output, and must not change."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.unit.trainer.data.unfinished.at_work import PIECE_BYTES, AtWork


@pytest.mark.parametrize("is_trained", [False, True])
def test_in_a_folder_that_is_read_what_is_written_is_no_input(at_work: AtWork, corpus: Path, is_trained: bool) -> None:
    tokenizer = ["--vocab-size=290"] if is_trained else at_work.tokenizer
    at_work.out.mkdir()
    for name in "abc":
        (at_work.out / name).write_text((corpus / "corpus.jsonl").read_text())
    at_work.words[0] = str(at_work.out)
    process = at_work.paused(*tokenizer)
    process.kill()
    process.communicate(timeout=60)
    (at_work.out / ".c_text_document.state.partial.host.1.ab.tmp").write_text("begun")
    at_work.finished(*tokenizer)
    at_work.finished(*tokenizer, "--overwrite")
    assert json.loads((at_work.out / "c_text_document.json").read_text())["documents"] == 3


@pytest.mark.parametrize("how", ["shorter", "longer", "gone"])
def test_what_changes_while_it_is_read_is_refused_by_name(
    at_work: AtWork, corpus: Path, tmp_path: Path, how: str
) -> None:
    file = tmp_path / "changing.jsonl"
    shutil.copy(corpus / "corpus.jsonl", file)
    at_work.words[0] = str(file)
    process = at_work.paused(*at_work.tokenizer, "--workers=1")
    if how == "shorter":
        os.truncate(file, file.stat().st_size - 2 * PIECE_BYTES)
    elif how == "longer":
        file.write_text(file.read_text() + '{"text": "more"}\n')
    else:
        file.unlink()
    at_work.go()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and err.count("\n") == 1 and str(file) in err
    assert not (at_work.out / "c_text_document.idx").exists()
