"""Tests of tokenizer files, which `trainer.convert.hf.documents` contains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from trainer.convert.hf.documents import TokenizerFiles, tokenizer_files
from trainer.data import tokenizer as bpe
from trainer.formats.data.vocabulary_files import DataNotes, SkippedCounts, tokenizer_identity, write_notes
from trainer.formats.errors import CheckpointError

TOKENS = 300
TEXTS = [
    "words of a text, and more words",
    "  def f(x):\n\treturn x ** 2  ",
    "zwölf Boxkämpfer, 十二 🙂",
    "don't 123 !!",
    "",
]


def trained(end: str = bpe.END_OF_DOCUMENT) -> Tokenizer:
    tokenizer = bpe.train(["words and words of a text " * 20, "return the text of words"], TOKENS - 3)
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"] if end == "</s>" else [])
    return tokenizer


def written(folder: Path, files: TokenizerFiles | None) -> Path:
    assert files is not None
    folder.mkdir()
    for name, text in files.texts.items():
        (folder / name).write_text(text)
    # transformers takes the class from the model's configuration where the tokenizer's says nothing.
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": TOKENS}))
    return folder


def assert_transformers_encodes_alike(folder: Path, tokenizer: Tokenizer) -> Any:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert theirs(text)["input_ids"] == ids and theirs.decode(ids) == text
    return theirs


def options_for(kind: str, folder: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the options of a training, with each way to give its tokenizer."""
    if kind == "vocabulary and merges":
        tokenizer.model.save(str(folder))
        return {"vocab_file": str(folder / "vocab.json"), "merge_file": str(folder / "merges.txt")}
    tokenizer.save(str(folder / "tokenizer.json"))
    if kind == "data's notes":
        text = tokenizer.to_str(pretty=True)
        write_notes(folder / "corpus", notes(str(folder / "tokenizer.json"), text))
        return {"data_path": [str(folder / "corpus")]}
    name = folder if kind == "folder" else folder / "tokenizer.json"
    return {"tokenizer_name_or_path": str(name)}


def notes(file: str, text: str) -> DataNotes:
    import hashlib

    return DataNotes(
        documents=1, tokens=1, text_bytes=1, bytes_per_token=1.0, vocab_size=TOKENS,
        entropy_nats=1.0, ln_vocab_nats=1.0, eod=0, dtype="uint16", engine="native", tokenizer=file, bin_sha256="",
        tokenizer_sha256=hashlib.sha256(text.encode()).hexdigest(), skipped=SkippedCounts(0, 0, 0),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["folder", "file", "vocabulary and merges", "data's notes"])
def test_transformers_encodes_as_the_training_did(tmp_path: Path, kind: str) -> None:
    tokenizer = trained()
    options = options_for(kind, tmp_path, tokenizer)
    files = tokenizer_files(options, tokenizer_identity(options), TOKENS, 128)
    theirs = assert_transformers_encodes_alike(written(tmp_path / "out", files), tokenizer)
    # GPT-2's one token for both ends, and what transformers makes of the files agrees with config.json.
    assert files is not None and [*files.special.values()] == [0, 0, None]
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (0, 0, None)
    assert theirs.model_max_length == 128


def test_a_tokenizers_own_configuration_is_taken_for_its_tokens_and_nothing_else(tmp_path: Path) -> None:
    tokenizer = trained("</s>")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    own = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "pad_token": "<pad>",
        "unk_token": "<nobody>",
        "name_or_path": "/home/somebody/secret",
        "auto_map": {"AutoTokenizer": ["evil.Tokenizer", None]},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
    files = tokenizer_files({"tokenizer_name_or_path": str(tmp_path)}, None, TOKENS, 128)
    theirs = assert_transformers_encodes_alike(written(tmp_path / "out", files), tokenizer)
    assert files is not None and "secret" not in str(files.texts) and "auto_map" not in str(files.texts)
    ids = [tokenizer.token_to_id(name) for name in ("<s>", "</s>", "<pad>")]
    assert [*files.special.values()] == ids
    assert [theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id] == ids


def test_a_tokenizer_that_is_another_or_gone_or_too_large_is_refused(tmp_path: Path) -> None:
    options = options_for("folder", tmp_path, trained())
    identity, size = tokenizer_identity(options), bpe.vocab_size(trained())
    with pytest.raises(CheckpointError, match=rf"\b{size} tokens.*\b{size - 1}\b.*--tokenizer"):
        tokenizer_files(options, identity, size - 1, 128)
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**spec, "truncation": None, "version": "1.1"}))
    with pytest.raises(CheckpointError, match=r"tokenizer .*\bchanged\b"):
        tokenizer_files(options, identity, TOKENS, 128)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"--tokenizer.*--no-tokenizer"):
        tokenizer_files(options, identity, TOKENS, 128)


def test_a_tokenizer_that_is_not_what_the_data_were_made_with_is_refused(tmp_path: Path) -> None:
    options = options_for("data's notes", tmp_path, trained())
    trained("</s>").save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json.*data"):
        tokenizer_files(options, None, TOKENS, 128)


def test_a_training_that_knew_only_a_size_has_none(tmp_path: Path) -> None:
    assert tokenizer_files({"vocab_size": 64, "data_path": [str(tmp_path / "corpus")]}, None, 64, 128) is None
