"""Training a tokenizer, and loading one that is given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from trainer.data import tokenizer as bpe
from trainer.data.encoder import Encoder
from trainer.formats.errors import DataError

TEXTS = ["def hello(name):\n    return f'hello {name}'\n" * 20, "naïve café — 漢字 и кириллица 123 4567\t\r\n" * 20]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return bpe.train(TEXTS, 400)


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    tokenizer.encode_special_tokens = True
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def test_ids_decode_to_the_text(trained: Tokenizer) -> None:
    encoder = Encoder(trained)
    assert [trained.decode(encoder.encode(text)) for text in TEXTS] == TEXTS


def byte_level(merges: list[tuple[str, str]], **model: object) -> Tokenizer:
    """Return a byte-level BPE with just these merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, **model))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_training_gives_the_same_ids_in_every_process() -> None:
    script = f"from trainer.data import tokenizer as bpe; print(bpe.train({TEXTS!r}, 400).to_str())"
    runs = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
        ).stdout
        for seed, threads in (("1", "1"), ("2", "2"), ("3", "2"))
    }
    assert len(runs) == 1


def test_gpt2s_two_files_make_a_tokenizer(trained: Tokenizer, tmp_path: Path) -> None:
    model = json.loads(trained.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    loaded = bpe.load(tmp_path)
    assert bpe.end_of_document(loaded) == 0
    encoder = Encoder(loaded)
    assert encoder.encode(TEXTS[0]) == plain_ids(trained, TEXTS[0])


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_tokenizer_that_is_none_is_refused_by_name(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError) as refusal:
        bpe.load(tmp_path)
    assert str(tmp_path) in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_vocabulary_without_an_end_token_is_refused_with_the_way_out() -> None:
    with pytest.raises(DataError, match="--no-append-eod"):
        bpe.end_of_document(byte_level([]))
