"""Datasets from options, the vocabulary's size, and the check before a job is submitted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.facts import missing
from tests.unit.trainer.data.conftest import MakePair, options_for
from trainer.data.build import DataError, build_datasets, vocab_size
from trainer.formats.data.data_sources import data_errors


def test_datasets_give_at_least_what_is_asked_and_only_what_is_asked(make_pair: MakePair) -> None:
    options = options_for(data_path=[make_pair("corpus", lengths=[50] * 20)], split="6,2,2")
    data = build_datasets(options, 300, 40, 0)
    assert data.train is not None and len(data.train) >= 300
    assert {name: len(valid) >= 40 for name, valid in data.valid.items()} == {"valid": True}
    assert data.test == {}


def test_every_validation_group_has_its_name_and_its_samples(make_pair: MakePair) -> None:
    prefix = make_pair("corpus", lengths=[50] * 20)
    options = options_for(
        train_weighted_split_paths=[f"train: 1 0:0.5 {prefix}"],
        valid_weighted_split_paths=[f"EN: 1 0.5:0.7 {prefix}", f"MIX: 1 0.5:0.7 {prefix}, 2 0.7:1 {prefix}"],
    )
    data = build_datasets(options, 20, 30, 10)
    assert [name for name, valid in data.valid.items() if len(valid) >= 30] == ["EN", "MIX"]
    first_of_each_range = {int(sample[0]) // 50 for sample in (data.valid["EN"][place] for place in range(30))}
    assert first_of_each_range <= set(range(10, 14))


def test_a_sample_is_the_tokens_of_documents_end_to_end_sharing_one_with_its_neighbour(make_pair: MakePair) -> None:
    # One document in one epoch: whatever the shuffles do, samples are pieces of it.
    options = options_for(data_path=[make_pair("corpus", lengths=[33])])
    train = build_datasets(options, 4, 0, 0).train
    assert train is not None
    samples = sorted(train[place].tolist() for place in range(len(train)))
    assert samples == [list(range(start, start + 9)) for start in (0, 8, 16, 24)]


def test_a_corpus_smaller_than_one_sample_is_refused_with_the_numbers(make_pair: MakePair) -> None:
    prefix = make_pair("corpus", lengths=[3, 5, 400])
    options = options_for(data_path=[prefix], split="2,1,0")
    with pytest.raises(DataError) as refusal:
        build_datasets(options, 10, 0, 0)
    said = str(refusal.value)
    assert not missing(said, "train", "2 of 3", prefix, "8 tokens", "9", "--split") and "\n" not in said
    assert data_errors(options, ("train",)) == [said]


def test_one_token_more_than_the_sequence_is_enough(make_pair: MakePair) -> None:
    options = options_for(data_path=[make_pair("corpus", lengths=[3, 6])])
    assert data_errors(options) == []
    train = build_datasets(options, 5, 0, 0).train
    assert train is not None and len(train) >= 5


def test_an_empty_split_range_is_refused_by_name(make_pair: MakePair) -> None:
    options = options_for(data_path=[make_pair("corpus", lengths=[100, 100])], split="969, 30, 1")
    with pytest.raises(DataError, match=r"^valid .*\b0 of 2\b"):
        build_datasets(options, 10, 10, 0)


def test_a_validation_set_smaller_than_one_evaluation_is_refused_with_both_numbers(make_pair: MakePair) -> None:
    prefix = make_pair("corpus", lengths=[65] * 20)
    options = options_for(
        train_weighted_split_paths=[f"train: 1 0:0.5 {prefix}"],
        valid_weighted_split_paths=[f"MIX: 1 0.5:0.6 {prefix}, 1 0.6:0.7 {prefix}", f"EN: 1 0.9:1 {prefix}"],
        global_batch_size=4,
        eval_iters=5,
    )
    # Two documents of 65 tokens are 129 shared ones: 16 samples of 8. The mix has twice as many.
    with pytest.raises(DataError) as refusal:
        build_datasets(options, 20, 30, 0)
    said = str(refusal.value)
    assert not missing(said, "EN", "16 samples", "20", "--eval-iters 4") and "\n" not in said
    assert data_errors(options) == [said]
    enough = {**options, "eval_iters": 4}
    assert data_errors(enough) == [] and list(build_datasets(enough, 20, 30, 0).valid) == ["MIX", "EN"]


def test_missing_and_corrupt_data_is_found_before_a_job_is(make_pair: MakePair, tmp_path: Path) -> None:
    good, cut = make_pair("good", lengths=[30]), make_pair("cut", lengths=[30])
    Path(f"{cut}.bin").write_bytes(b"")
    errors = data_errors(options_for(data_path=["1", good, "1", cut, "1", str(tmp_path / "none")]))
    assert len(errors) == 2
    assert not missing(errors[0], "cut.bin", "0 bytes", "cut.idx", "60")
    assert f"{tmp_path}/none" in errors[1]


def test_the_check_needs_neither_numpy_nor_torch(make_pair: MakePair) -> None:
    prefix = make_pair("corpus", lengths=[30])
    script = (
        "import sys; from trainer.formats.data.data_sources import data_errors\n"
        f"print(data_errors({options_for(data_path=[prefix])!r}), 'numpy' in sys.modules, 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[] False False"


def tokenizer_json(path: Path, tokens: int, added: int) -> Path:
    vocab = {f"t{number}": number for number in range(tokens)}
    extra = [{"id": tokens + number, "content": f"<{number}>"} for number in range(added)]
    path.write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": extra}))
    return path


def test_the_vocabulary_comes_from_the_option_the_tokenizer_or_the_datas_own_note(
    make_pair: MakePair, tmp_path: Path
) -> None:
    prefix = make_pair("corpus", lengths=[30])
    Path(f"{prefix}.json").write_text(json.dumps({"vocab_size": 300}))
    options = options_for(data_path=[prefix])
    assert vocab_size(options) == 300
    file = tokenizer_json(tmp_path / "tokenizer.json", 500, 3)
    assert vocab_size({**options, "tokenizer_name_or_path": str(file)}) == 503
    assert vocab_size({**options, "tokenizer_name_or_path": str(tmp_path)}) == 503
    with pytest.raises(DataError, match=r"\b503\b.*--vocab-size 502"):
        vocab_size({**options, "tokenizer_name_or_path": str(file), "vocab_size": 502})
    assert vocab_size({**options, "tokenizer_name_or_path": str(file), "vocab_size": 512}) == 512
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 700}))
    assert vocab_size({**options, "vocab_file": str(tmp_path / "vocab.json")}) == 701
    assert vocab_size({**options, "vocab_size": 1000}) == 1000


def test_a_vocabulary_smaller_than_the_datas_is_refused(make_pair: MakePair) -> None:
    prefix = make_pair("corpus", lengths=[30])
    Path(f"{prefix}.json").write_text(json.dumps({"vocab_size": 300, "tokenizer": "/t/tokenizer.json"}))
    with pytest.raises(DataError, match=r"\b300\b.*\b200\b.*/t/tokenizer.json"):
        vocab_size(options_for(data_path=[prefix], vocab_size=200))


def test_a_tokenizers_name_is_looked_up_in_the_cache_and_never_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    options = options_for(tokenizer_name_or_path="lab/tokens")
    with pytest.raises(DataError, match="lab/tokens"):
        vocab_size(options)
    folder = tmp_path / "hub" / "models--lab--tokens" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    tokenizer_json(folder / "tokenizer.json", 40, 0)
    assert vocab_size(options) == 40


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({}, ["--vocab-size"]),
        ({"vocab_file": "/nowhere/vocab.json"}, ["/nowhere/vocab.json", "No such file"]),
        ({"tokenizer_name_or_path": "."}, ["tokenizer.json", "vocab.json"]),
    ],
)
def test_an_unknown_vocabulary_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], facts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as refusal:
        vocab_size(options_for(**given))
    assert not missing(str(refusal.value), *facts)
