"""Several inputs, and folders: what is read, and in which order."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest

from trainer.data.corpus import Choice, Corpus
from trainer.data.pieces import Skipped
from trainer.formats.errors import DataError


def line(text: str) -> bytes:
    return json.dumps({"text": text}).encode() + b"\n"


def read(*inputs: Path | str, choice: Choice = Choice()) -> list[str]:  # noqa: B008 -- frozen
    pieces = Corpus([str(one) for one in inputs], choice).pieces()
    return [text for placed in pieces for text in placed.piece.texts(Skipped())]


def test_inputs_are_read_in_the_order_given(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "[c].jsonl"):
        (tmp_path / name).write_bytes(line(name))
    inputs = [tmp_path / name for name in ("[c].jsonl", "b.jsonl", "a.jsonl")]
    assert read(*inputs) == ["[c].jsonl", "b.jsonl", "a.jsonl"]
    with pytest.raises(DataError, match="/none"):
        read(tmp_path / "none")


def test_a_folder_of_files_of_records_is_read_as_these(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.jsonl").write_bytes(line("b"))
    (tmp_path / "sub" / "a.jsonl.gz").write_bytes(gzip.compress(line("a")))
    (tmp_path / "empty.jsonl").touch()
    assert read(tmp_path) == ["b", "a"]


def test_a_folder_with_packed_records_beside_other_files_is_refused_until_it_is_said_which(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(line("a")))
    with pytest.raises(DataError, match=r"a\.jsonl\.gz.*README\.md"):
        read(tmp_path)
    assert read(tmp_path, choice=Choice(include=["*.gz"])) == ["a"]
    assert read(tmp_path, choice=Choice(exclude=["*.gz"])) == ["about"]


@pytest.mark.parametrize("ending", ["jsonl", "ndjson", "json.gz"])
def test_no_file_of_records_is_taken_for_a_document_as_the_files_beside_it(tmp_path: Path, ending: str) -> None:
    (tmp_path / "README.md").write_text("about")
    raw = line("b")
    (tmp_path / f"train.v1.{ending}").write_bytes(gzip.compress(raw) if ending.endswith("gz") else raw)
    with pytest.raises(DataError, match=rf"--include.*--exclude '\*\.{ending}'"):
        read(tmp_path)
    assert read(tmp_path, choice=Choice(include=[f"*.{ending}"])) == ["b"]
    assert read(tmp_path, choice=Choice(exclude=[f"*.{ending}"])) == ["about"]


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    # Opening one for reading waits for who writes it; so does this, until it is refused or read.
    with subprocess.Popen(["sh", "-c", f"exec 2>/dev/null; : > {tmp_path}/fifo"]) as writer:
        try:
            with pytest.raises(DataError, match="/fifo"):
                read(tmp_path / "fifo")
        finally:
            writer.kill()


def test_a_mistake_in_a_late_file_comes_after_what_is_before_it(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.jsonl").write_bytes(line(str(number)))
    (tmp_path / "9.jsonl.gz").write_bytes(gzip.compress(line("9"))[:-4])
    found = []
    with pytest.raises(DataError, match=r"/9\.jsonl\.gz"):
        for placed in Corpus([str(tmp_path)], Choice()).pieces():
            found += placed.piece.texts(Skipped())
    assert found == [str(number) for number in range(9)]
