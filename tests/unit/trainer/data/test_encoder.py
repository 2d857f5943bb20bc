"""Encoding: the encoder in C++ gives the ids of tokenizers."""

from __future__ import annotations

import ctypes
import functools
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.native_libraries import built_library
from trainer.data import compiled
from trainer.data import tokenizer as bpe
from trainer.data.encoder import Encoder, classes_of

TEXTS = ["def hello(name):\n    return f'hello {name}'\n" * 20, "naïve café — 漢字 и кириллица 123 4567\t\r\n" * 20]
ODD = (
    "ab cd's'll're'T  \n\t\r\x0b\x1c\x1f\x85\u00a0\u2003\u200b\u3000é漢字かな\u0645\u0631\u0627\u0661\uff13Ⅷ½²e\u0301"
    "🙂👩\u200d💻!?.,_-\ufeff\0\ufffd\U0010ffff\u01c5\u02b0"
)
Built = Callable[[Tokenizer], Encoder]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return bpe.train(TEXTS, 400)


def the_library() -> ctypes.CDLL:
    return compiled.declared(built_library("data"))


def encoder(tokenizer: Tokenizer, library: ctypes.CDLL | None) -> Encoder:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compiled, "library", lambda: library)
        return Encoder(tokenizer)


@functools.lru_cache(2)
def with_cpp(tokenizer: Tokenizer) -> Encoder:
    return encoder(tokenizer, the_library())


@functools.lru_cache(2)
def without_cpp(tokenizer: Tokenizer) -> Encoder:
    return encoder(tokenizer, None)


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    tokenizer.encode_special_tokens = True
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@given(text=st.text(max_size=80) | st.text(alphabet="ab '\n\t1!é漢s\u00a0\u2003", max_size=80))
def test_the_encoder_in_cpp_gives_the_same_ids_on_any_text(trained: Tokenizer, text: str) -> None:
    fast = with_cpp(trained)
    assert fast.engine == "native"
    assert fast.encode(text) == plain_ids(trained, text)


def test_the_encoder_in_cpp_gives_the_same_ids_on_thousands_of_odd_texts_at_once(trained: Tokenizer) -> None:
    draw = random.Random(5)
    anything = [*range(1, 0x300), *(draw.randrange(0x300, 0xD800) for _ in range(2000))]
    anything += [draw.randrange(0xE000, 0x110000) for _ in range(2000)]
    texts = ["".join(draw.choices(ODD, k=draw.randrange(90))) for _ in range(1500)]
    texts += ["".join(map(chr, draw.choices(anything, k=draw.randrange(40)))) for _ in range(1500)]
    packed = with_cpp(trained).packed(texts, None, np.dtype("<i4"))
    wanted = [one.ids for one in trained.encode_batch_fast(texts, add_special_tokens=False)]
    assert packed.lengths.tolist() == [len(ids) for ids in wanted]
    assert packed.tokens.tolist() == [token for ids in wanted for token in ids]


@pytest.mark.parametrize("built", [with_cpp, without_cpp])
@pytest.mark.parametrize("unit", ["a", " ", "ab", " \n", "漢", "the ", "!a1 "])
def test_words_and_runs_around_every_limit_are_encoded(trained: Tokenizer, built: Built, unit: str) -> None:
    fast = built(trained)
    for count in (1, 2, 10, 15, 16, 30, 31, 32, 33, 39, 40, 41, 42, 100, 100_000 if unit == "a" else 1000):
        assert fast.encode(unit * count) == plain_ids(trained, unit * count), count


@pytest.mark.parametrize("built", [with_cpp, without_cpp])
@pytest.mark.parametrize("dtype", ["<u2", "<i4"])
def test_texts_are_packed_each_with_its_end(trained: Tokenizer, built: Built, dtype: str) -> None:
    packed = built(trained).packed([TEXTS[0], "é", TEXTS[1]], 0, np.dtype(dtype))
    wanted = [[*plain_ids(trained, text), 0] for text in (TEXTS[0], "é", TEXTS[1])]
    assert packed.tokens.dtype == np.dtype(dtype) and packed.lengths.dtype == np.int32
    assert packed.lengths.tolist() == list(map(len, wanted))
    assert packed.tokens.tolist() == [token for ids in wanted for token in ids]
    assert packed.text_bytes == sum(len(text.encode()) for text in (TEXTS[0], "é", TEXTS[1]))
    assert built(trained).packed([], 0, np.dtype(dtype)).tokens.size == 0


@pytest.mark.parametrize("built", [with_cpp, without_cpp])
def test_the_name_of_the_end_token_inside_a_text_stays_text(trained: Tokenizer, built: Built) -> None:
    end = bpe.end_of_document(trained)
    untouched = Tokenizer.from_str(trained.to_str())
    assert end in untouched.encode(bpe.END_OF_DOCUMENT).ids
    for one in (slow(untouched), built(untouched)):
        ids = one.encode(f"a {bpe.END_OF_DOCUMENT} b")
        assert end not in ids and trained.decode(ids) == f"a {bpe.END_OF_DOCUMENT} b"


def test_no_text_is_cut_or_filled_up_whatever_the_tokenizer_was_saved_with(trained: Tokenizer) -> None:
    wanted = plain_ids(trained, TEXTS[0])
    for is_slow in (False, True):
        tokenizer = Tokenizer.from_str(trained.to_str())
        if is_slow:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.enable_truncation(max_length=16)
        tokenizer.enable_padding(length=4096)
        for library in (None, the_library()):
            saved = Tokenizer.from_str(tokenizer.to_str())
            assert encoder(saved, library).encode(TEXTS[0]) == wanted


def slow(tokenizer: Tokenizer) -> Encoder:
    """Return an encoder of the same ids that goes through tokenizers: an added word keeps the fast engines away."""
    other = Tokenizer.from_str(tokenizer.to_str())
    other.add_tokens(["a word that no text here has"])
    found = with_cpp(other)
    assert found.engine == "tokenizers"
    return found


def of_merges(merges: list[tuple[str, str]], **model: object) -> Tokenizer:
    """Return a byte-level BPE with just these merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = dict.fromkeys(a + b for a, b in merges)
    vocab = {token: number for number, token in enumerate([*alphabet, *made])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, **model))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_a_merge_that_is_never_reached_is_never_made() -> None:
    # `abc` is listed as a+bc, but a+b comes first: tokenizers never makes it from its bytes.
    unsound = of_merges([("a", "b"), ("b", "c"), ("a", "bc")])
    assert plain_ids(unsound, "abc") != [258]
    assert with_cpp(unsound).encode("abc") == without_cpp(unsound).encode("abc") == plain_ids(unsound, "abc")


def test_any_list_of_merges_is_followed_by_the_encoder_in_cpp() -> None:
    draw = random.Random(11)
    for _ in range(60):
        parts, merges = [*"abcd"], []
        for _ in range(draw.randrange(1, 25)):
            pair = draw.choice(parts), draw.choice(parts)
            if pair not in merges:
                merges.append(pair)
                parts.append("".join(pair))
        tokenizer = of_merges(merges)
        texts = ["".join(draw.choices("abcd ", k=draw.randrange(70))) for _ in range(40)]
        found = with_cpp(tokenizer)
        assert found.engine == "native"
        assert [found.encode(text) for text in texts] == [plain_ids(tokenizer, text) for text in texts], merges


def test_anything_but_plain_byte_level_goes_through_tokenizers() -> None:
    prefixed = of_merges([("a", "b")])
    prefixed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    with_a_word = of_merges([("a", "b")])
    with_a_word.add_tokens(["word"])
    for tokenizer in (prefixed, with_a_word, of_merges([("a", "b")], ignore_merges=True)):
        for built in (with_cpp, without_cpp):
            found = built(tokenizer)
            assert found.engine == "tokenizers"
            assert found.encode("ab word ab") == plain_ids(tokenizer, "ab word ab")


def test_more_new_characters_than_ever_asked_for_at_once_are_all_classed(trained: Tokenizer) -> None:
    text = " ".join(chr(one) for one in range(0x100, 0x3000))
    assert with_cpp(trained).encode(text) == plain_ids(trained, text)


def test_classes_are_those_of_tokenizers() -> None:
    assert classes_of("aé漢1\uff13Ⅷ!\u0301🙂 \u00a0\u3000\x1c\x85") == [
        *(["letter"] * 3),
        *(["number"] * 3),
        *(["other"] * 3),
        *(["space"] * 3),
        *(["other", "space"]),
    ]
