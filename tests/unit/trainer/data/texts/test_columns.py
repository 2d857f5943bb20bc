"""Parquet, Arrow and what `datasets` saves: the same rows whatever the batches, and what is wrong by name."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet

from tests.unit.trainer.data.texts.test_lines import cut, texts
from trainer.data.corpus import Corpus
from trainer.data.texts.inputs import Choice
from trainer.data.texts.piece import Skipped
from trainer.formats.distribution import install_command
from trainer.formats.errors import DataError

ROWS = [f"row {number} é" * (number % 7) if number % 11 else None for number in range(100)]
WANTED = [text for text in ROWS if text]


def table(kind: Any = None) -> pyarrow.Table:
    column = pyarrow.array(ROWS, kind or pyarrow.string())
    return pyarrow.table({"id": list(range(len(ROWS))), "text": column})


def write(path: Path, form: str, rows: pyarrow.Table, batch: int = 64) -> None:
    if form == "parquet":
        parquet.write_table(rows, path, row_group_size=batch)
        return
    new = ipc.new_file if form == "arrow" else ipc.new_stream
    with new(str(path), rows.schema) as writer:
        writer.write_table(rows, max_chunksize=batch)


@pytest.mark.parametrize("form", ["parquet", "arrow", "stream"])
@pytest.mark.parametrize("piece_bytes", [1, 500, 1 << 20])
def test_rows_come_once_and_in_order_whatever_the_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, piece_bytes: int
) -> None:
    cut(monkeypatch, piece_bytes)
    cuts = []
    for batch in (1, 64, 1000):
        path = tmp_path / f"{batch}"
        write(path, form, table(), batch)
        skipped = Skipped()
        pieces = [placed.piece for placed in Corpus([str(path)], Choice()).pieces()]
        assert [text for piece in pieces for text in piece.texts(skipped)] == WANTED
        assert skipped.empty == len(ROWS) - len(WANTED)
        cuts.append([len(piece.texts(Skipped())) for piece in pieces])
    assert cuts[0] == cuts[1] == cuts[2]


@pytest.mark.parametrize(
    "kind", [pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())], ids=str
)
def test_every_type_of_text_is_read(tmp_path: Path, kind: Any) -> None:
    write(tmp_path / "c", "stream", table().set_column(1, "text", table()["text"].cast(kind)))
    assert texts(tmp_path / "c") == WANTED


@pytest.mark.parametrize("form", ["parquet", "arrow", "stream"])
def test_another_column_is_refused_with_those_there_are(tmp_path: Path, form: str) -> None:
    write(tmp_path / "c", form, table())
    with pytest.raises(DataError, match=r"/c\b.*'body'.*\bid, text\b.*--json-key"):
        texts(tmp_path / "c", "body")
    with pytest.raises(DataError, match=r"/c\b.*'id'.*\bint64\b"):
        texts(tmp_path / "c", "id")


@pytest.mark.parametrize("form", ["parquet", "arrow", "stream"])
def test_a_file_that_is_cut_short_is_refused_by_name(tmp_path: Path, form: str) -> None:
    write(tmp_path / "c", form, table())
    whole = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(DataError, match=r"/c\b.*\brow \d+"):
        texts(tmp_path / "c")


def test_text_that_is_no_utf8_is_refused_with_its_row(tmp_path: Path) -> None:
    raw = pyarrow.array([b"good", b"b\xffd"], pyarrow.binary())
    forged = pyarrow.Array.from_buffers(pyarrow.string(), 2, raw.buffers())
    write(tmp_path / "c", "stream", pyarrow.table({"text": forged}))
    with pytest.raises(DataError, match=r"/c, row 2\b.*UTF-8.*\bbyte 2\b"):
        texts(tmp_path / "c")


def saved(folder: Path, files: dict[str, pyarrow.Table], **state: object) -> None:
    """Write a folder with `Dataset.save_to_disk`."""
    folder.mkdir(parents=True)
    for name, rows in files.items():
        write(folder / name, "stream", rows)
    listed = [{"filename": name} for name in files]
    (folder / "state.json").write_text(json.dumps({"_data_files": listed, "_split": folder.name, **state}))
    (folder / "dataset_info.json").write_text("{}")


def test_a_folder_that_datasets_saved_is_read_in_the_order_of_its_state(tmp_path: Path) -> None:
    saved(tmp_path / "d", {"b.arrow": table()[:100], "a.arrow": table()[100:]})
    assert texts(tmp_path / "d") == WANTED


def test_of_a_dict_of_datasets_the_split_is_chosen(tmp_path: Path) -> None:
    saved(tmp_path / "train", {"a.arrow": table()})
    saved(tmp_path / "test", {"a.arrow": table()[:10]})
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    corpus = Corpus([str(tmp_path)], Choice(split="test"))
    found = [text for placed in corpus.pieces() for text in placed.piece.texts(Skipped())]
    assert found == [text for text in ROWS[:10] if text]
    with pytest.raises(DataError, match=r"\btrain, test\b.*--split"):
        Corpus([str(tmp_path)], Choice())
    with pytest.raises(DataError, match=r"'valid'.*\btrain, test\b"):
        Corpus([str(tmp_path)], Choice(split="valid"))
    with pytest.raises(DataError, match="--split x"):
        Corpus([str(tmp_path / "train" / "a.arrow")], Choice(split="x"))


@pytest.mark.parametrize(
    ("state", "fact"),
    [
        ({"_data_files": []}, "state.json"),
        ({"_data_files": [{"filename": "../../secret"}]}, "state.json"),
        ({"_indices_data_files": [{"filename": "i.arrow"}]}, "flatten_indices"),
    ],
)
def test_a_folder_of_datasets_that_cannot_be_read_as_it_is_is_refused(
    tmp_path: Path, state: dict[str, object], fact: str
) -> None:
    saved(tmp_path / "d", {"a.arrow": table()}, **state)
    with pytest.raises(DataError, match=fact):
        Corpus([str(tmp_path / "d")], Choice())


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "c", "parquet", table())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=rf"\bpyarrow\b.*{re.escape(install_command('data'))}"):
        texts(tmp_path / "c")
