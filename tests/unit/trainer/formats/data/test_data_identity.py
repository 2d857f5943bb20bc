"""Data and tokenizer are known by what is in them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.tiny_run import write_data
from trainer.formats.data import data_identity
from trainer.formats.data.data_identity import checksum, data_facts, training_data
from trainer.formats.data.index_header import read_header
from trainer.formats.data.vocabulary_files import tokenizer_identity
from trainer.formats.errors import DataError
from trainer.recipe.options import Options


def options(**given: object) -> Options:
    return Options({"eval_iters": 0, **given})


def of(prefix: Path) -> str:
    return checksum(read_header(prefix))


def test_a_copy_elsewhere_is_the_same_and_another_time_of_change_changes_nothing(tmp_path: Path) -> None:
    write_data(tmp_path / "one")
    for suffix in (".bin", ".idx"):
        shutil.copy(tmp_path / f"one{suffix}", tmp_path / f"other{suffix}")
    os.utime(tmp_path / "other.bin", (1, 1))
    assert of(tmp_path / "one") == of(tmp_path / "other")


@pytest.mark.parametrize("whole", [True, False])
def test_an_edit_at_either_end_and_other_lengths_are_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Both for a file that is read whole and for one of which pieces are."""
    if not whole:
        monkeypatch.setattr(data_identity, "READ_WHOLE_BYTES", 256)
    write_data(tmp_path / "data", documents=16)
    found = {of(tmp_path / "data")}
    tokens = (tmp_path / "data.bin").read_bytes()
    for at in (0, len(tokens) - 1):
        changed = bytearray(tokens)
        changed[at] ^= 1
        (tmp_path / "data.bin").write_bytes(changed)
        found.add(of(tmp_path / "data"))
    write_data(tmp_path / "data", documents=32, tokens_each=32)  # as many tokens, cut otherwise
    assert (tmp_path / "data.bin").read_bytes() == tokens
    assert len({*found, of(tmp_path / "data")}) == 4


def test_a_blend_is_told_by_shares_and_order_not_by_how_weights_are_written(tmp_path: Path) -> None:
    for name, documents in (("a", 8), ("b", 16)):
        write_data(tmp_path / name, documents=documents)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")

    def blend(*words: str) -> list[dict[str, object]]:
        return training_data(options(data_path=list(words), split="1,0,0"))

    assert blend("1", a, "2", b) == blend("0.5", a, "1.0", b) != blend("1", b, "2", a)
    assert [one["documents"] for one in blend("1", a, "2", b)] == [8, 16]
    assert blend("1", a, "2", b) != blend("1", a, "3", b)


def test_without_reading_there_is_no_checksum_and_the_rest_is_the_same(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    given = options(data_path=[str(tmp_path / "data")], split="3,1,0")
    (read,), (looked,) = training_data(given), training_data(given, read=False)
    assert looked == {"documents": 8, "tokens": 512, "first_document": 0, "last_document": 6}
    assert {**looked, "xxh64": of(tmp_path / "data")} == read


def test_what_is_evaluated_on_is_looked_at_where_it_is_evaluated(tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    given = {"data_path": [str(tmp_path / "data")], "split": "6,2,0"}
    facts = data_facts(options(**given, eval_iters=1))
    assert facts["valid_data"] == [
        {
            "group": "valid",
            "sources": [{"documents": 8, "tokens": 512, "first_document": 6, "last_document": 8}],
        }
    ]
    assert facts["test_data"] == []
    assert "valid_data" not in data_facts(options(**given))


def test_data_that_is_not_there_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="/none"):
        data_facts(options(data_path=[str(tmp_path / "none")]))


def test_a_tokenizer_is_its_content_however_it_is_written_and_wherever_it_lies(tmp_path: Path) -> None:
    spec = {"model": {"vocab": {"a": 0, "b": 1}, "merges": []}, "added_tokens": []}
    (tmp_path / "one.json").write_text(json.dumps(spec))
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "tokenizer.json").write_text(json.dumps(spec, indent=2, sort_keys=True))
    (tmp_path / "three.json").write_text(json.dumps({**spec, "model": {"vocab": {"a": 1, "b": 0}, "merges": []}}))
    one, two, three = (
        tokenizer_identity(options(tokenizer_name_or_path=str(tmp_path / name)))
        for name in ("one.json", "two", "three.json")
    )
    assert one == two != three
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    files = {"vocab_file": str(tmp_path / "vocab.json"), "merge_file": str(tmp_path / "merges.txt")}
    pair = tokenizer_identity(options(**files))
    assert pair == tokenizer_identity(options(tokenizer_name_or_path=str(tmp_path)))
    (tmp_path / "merges.txt").write_text("a b\nab c\n")
    assert pair != tokenizer_identity(options(**files))
    assert tokenizer_identity(options(vocab_size=300)) is None
