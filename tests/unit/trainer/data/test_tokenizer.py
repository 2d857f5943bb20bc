"""Training, loading and encoding: the fast engine only where its ids are the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from trainer.data import tokenizer as bpe
from trainer.formats.errors import DataError

TEXTS = ["def hello(name):\n    return f'hello {name}'\n" * 20, "naïve café — 漢字 и кириллица 123 4567\t\r\n" * 20]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return bpe.train(TEXTS, 400)


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    tokenizer.encode_special_tokens = True
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=80) | st.text(alphabet="ab '\n\t1!é漢s\u00a0\u2003", max_size=80))
def test_the_fast_engine_gives_the_same_ids_on_any_text(trained: Tokenizer, text: str) -> None:
    encoder = bpe.Encoder(trained)
    assert encoder.engine == "tiktoken"
    assert encoder.encode([text])[0].tolist() == plain_ids(trained, text)


def test_ids_decode_to_the_text(trained: Tokenizer) -> None:
    ids = bpe.Encoder(trained, workers=2).encode(TEXTS)
    assert [trained.decode(one.tolist()) for one in ids] == TEXTS


def test_the_name_of_the_end_token_inside_a_text_stays_text(trained: Tokenizer) -> None:
    end = bpe.end_of_document(trained)
    assert end == 0
    untouched = Tokenizer.from_str(trained.to_str())
    assert end in untouched.encode(bpe.END_OF_DOCUMENT).ids
    for encoder in (slow(untouched), bpe.Encoder(untouched)):
        ids = encoder.encode([f"a {bpe.END_OF_DOCUMENT} b"])[0].tolist()
        assert end not in ids and trained.decode(ids) == f"a {bpe.END_OF_DOCUMENT} b"


def slow(tokenizer: Tokenizer) -> bpe.Encoder:
    """An encoder of the same ids that goes through tokenizers: an added word keeps the fast engine away."""
    other = Tokenizer.from_str(tokenizer.to_str())
    other.add_tokens(["a word that no text here has"])
    encoder = bpe.Encoder(other)
    assert encoder.engine == "tokenizers"
    return encoder


def test_a_run_of_white_space_longer_than_any_pattern_likes_is_encoded(trained: Tokenizer) -> None:
    for text in (" " * 300_000, "a" * 300_000, " \n" * 100_000 + "x"):
        assert bpe.Encoder(trained).encode([text])[0].tolist() == plain_ids(trained, text)


def byte_level(merges: list[tuple[str, str]], **model: object) -> Tokenizer:
    """A byte-level BPE with just these merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([*alphabet, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, **model))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_merges_that_tiktoken_would_do_differently_go_through_tokenizers() -> None:
    # `abc` is listed as a+bc, but a+b comes first: tokenizers never makes it from its bytes, tiktoken would.
    unsound = byte_level([("a", "b"), ("b", "c"), ("a", "bc")])
    assert plain_ids(unsound, "abc") != [258]
    encoder = bpe.Encoder(unsound)
    assert encoder.engine == "tokenizers"
    assert encoder.encode(["abc"])[0].tolist() == plain_ids(unsound, "abc")
    assert bpe.Encoder(byte_level([("b", "c"), ("a", "bc")])).engine == "tiktoken"


def test_anything_but_plain_byte_level_goes_through_tokenizers() -> None:
    prefixed = byte_level([("a", "b")])
    prefixed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    bytes_in_order = byte_level([("a", "b")])
    bytes_in_order.add_tokens(["word"])
    for tokenizer in (prefixed, bytes_in_order, byte_level([("a", "b")], ignore_merges=True)):
        encoder = bpe.Encoder(tokenizer)
        assert encoder.engine == "tokenizers"
        assert encoder.encode(["ab word ab"])[0].tolist() == plain_ids(tokenizer, "ab word ab")


def test_characters_that_the_libraries_class_differently_go_through_tokenizers(
    trained: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No such character is known between the pinned versions; one is made by changing what the fast side calls a letter.
    monkeypatch.setattr(bpe, "WORDS", bpe.WORDS.replace(r"\p{L}", r"(?:[^\P{L}é])"))
    tokenizer = Tokenizer.from_str(trained.to_str())
    encode, slowly = tokenizer.encode, []

    def noted(text: str, **how: Any) -> Any:
        slowly.append(text)
        return encode(text, **how)

    monkeypatch.setattr(tokenizer, "encode", noted)
    texts = ["café ici", "plain", "naïve", "déjà"]
    encoded = bpe.Encoder(tokenizer).encode(texts)
    assert [one.tolist() for one in encoded] == [plain_ids(trained, text) for text in texts]
    assert slowly == ["café ici", "déjà"]


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


def test_a_vocabulary_too_small_for_bytes_is_refused() -> None:
    with pytest.raises(DataError, match="--vocab-size 256 is too small: 257 at least"):
        bpe.train(TEXTS, 256)


def test_gpt2s_two_files_make_a_tokenizer(trained: Tokenizer, tmp_path: Path) -> None:
    model = json.loads(trained.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    loaded = bpe.load(tmp_path)
    assert bpe.end_of_document(loaded) == 0
    encoder = bpe.Encoder(loaded)
    assert encoder.engine == "tiktoken"
    assert encoder.encode(TEXTS[:1])[0].tolist() == plain_ids(trained, TEXTS[0])


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no tokenizer at"), ("{", "is no tokenizer that can be read"), ("{}", "is no tokenizer")],
)
def test_a_tokenizer_that_is_none_is_refused_by_name(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError) as refusal:
        bpe.load(tmp_path)
    assert said in str(refusal.value) and str(tmp_path) in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_vocabulary_without_an_end_token_is_refused_with_the_way_out() -> None:
    with pytest.raises(DataError, match="give --no-append-eod to go without"):
        bpe.end_of_document(byte_level([]))
