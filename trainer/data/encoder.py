"""Texts to ids, by the fastest engine whose ids are proven to be those of tokenizers.

native, the encoder in C++, does what tokenizers does for any byte-level BPE, merge by merge, and asks tokenizers for
the class of each character that it meets. tiktoken merges any neighbours whose bytes together are a token, lowest id
first: the same where `ByteLevelBpe.is_merged_in_order_of_ids`. Whether it cuts a text into the same words hangs on
Unicode tables of its own, and is checked for every character beyond ASCII that a text holds: documents with one on
which they differ go through tokenizers, as everything does of which neither is proven.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tiktoken
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.data import compiled
from trainer.data.byte_level import CLASSES, SPACE, WORDS, ByteLevelBpe, classes_of
from trainer.data.native_encoder import NativeEncoder


@dataclass(frozen=True)
class Packed:
    """tokens: [T], of the stored type, all texts' one after the other. lengths: [texts], int32, in tokens.

    text_bytes: of the texts, in UTF-8.
    """

    tokens: NDArray[np.integer]
    lengths: NDArray[np.int32]
    text_bytes: int


class Engine(Protocol):
    """What an `Encoder` encodes with. Special tokens' names in a text stay text."""

    #: As preparing data notes it.
    name: str

    def packed(self, texts: Sequence[str], eod: int | None, dtype: np.dtype[np.integer]) -> Packed:
        """The texts' tokens as they are stored, each text's ended by `eod` when given."""


class Encoder:
    """The engine for a tokenizer. library: the C++ of the data path, None to do without it."""

    def __init__(self, tokenizer: Tokenizer, library: ctypes.CDLL | None):
        tokenizer.encode_special_tokens = True
        # A tokenizer.json may bring what it was fine-tuned with; a document is neither cut nor filled up.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._engine = _engine(tokenizer, library)

    @classmethod
    def fastest(cls, tokenizer: Tokenizer) -> Encoder:
        """With what is built here."""
        return cls(tokenizer, compiled.library())

    @property
    def engine(self) -> str:
        """`native`, `tiktoken` or `tokenizers`. With tiktoken some texts still need tokenizers."""
        return self._engine.name

    def packed(self, texts: Sequence[str], eod: int | None, dtype: np.dtype[np.integer]) -> Packed:
        """See `Engine.packed`."""
        return self._engine.packed(texts, eod, dtype)

    def encode(self, text: str) -> list[int]:
        """The ids of one text."""
        ids: list[int] = self.packed([text], None, np.dtype(np.int32)).tokens.tolist()
        return ids


def _engine(tokenizer: Tokenizer, library: ctypes.CDLL | None) -> Engine:
    bpe = ByteLevelBpe.of(tokenizer)
    if bpe is None:
        return _Tokenizers(tokenizer)
    if library is not None:
        return _Native(NativeEncoder(library, bpe))
    return _Tiktoken(tokenizer, bpe) if bpe.is_merged_in_order_of_ids(tokenizer) else _Tokenizers(tokenizer)


class _Native:
    name = "native"

    def __init__(self, encoder: NativeEncoder):
        self._encoder = encoder

    def packed(self, texts: Sequence[str], eod: int | None, dtype: np.dtype[np.integer]) -> Packed:
        raw = [text.encode() for text in texts]
        return Packed(*self._encoder.packed(raw, eod, dtype), sum(map(len, raw)))


class _Tokenizers:
    name = "tokenizers"

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer

    def packed(self, texts: Sequence[str], eod: int | None, dtype: np.dtype[np.integer]) -> Packed:
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return _joined(texts, [np.array(one.ids, np.int32) for one in encoded], eod, dtype)


class _Tiktoken:
    name = "tiktoken"

    def __init__(self, tokenizer: Tokenizer, bpe: ByteLevelBpe):
        self._tokenizer = tokenizer
        # A byte alone never competes with a merge, so only what is merged needs an order.
        ranks = {token: number for number, token in bpe.token_bytes.items()}
        self._fast = tiktoken.Encoding("opsctl", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})
        self._probe = _word_probe()
        self._checked: set[str] = set()
        self._differing: set[str] = set()

    def packed(self, texts: Sequence[str], eod: int | None, dtype: np.dtype[np.integer]) -> Packed:
        for text in texts:
            if not text.isascii():
                self._check_characters(set(text) - self._checked)
        return _joined(texts, map(self._encode_one, texts), eod, dtype)

    def _encode_one(self, text: str) -> NDArray[np.integer]:
        if not self._differing or self._differing.isdisjoint(text):
            try:
                return self._fast.encode_to_numpy(text, disallowed_special=())
            except (ValueError, RuntimeError):
                pass  # a run of white space beyond the pattern engine's limit
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def _check_characters(self, characters: set[str]) -> None:
        """Find the characters that the two libraries do not class alike."""
        self._checked |= characters
        asked = sorted(characters)
        for character, theirs in zip(asked, classes_of(asked), strict=True):
            leads = CLASSES.items()
            words = (name for name, lead in leads if self._probe.encode_ordinary(lead + character)[0] >= 256)
            if next(words, SPACE) != theirs:
                self._differing.add(character)


def _word_probe() -> tiktoken.Encoding:
    """A vocabulary of bytes, and of each lead of CLASSES with any byte after it, ids from 256 on."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    for place, lead in enumerate(CLASSES.values(), 1):
        ranks |= {bytes([ord(lead), byte]): 256 * place + byte for byte in range(256)}
    return tiktoken.Encoding("words", pat_str=WORDS, mergeable_ranks=ranks, special_tokens={})


def _joined(
    texts: Sequence[str], encoded: Iterable[NDArray[np.integer]], eod: int | None, dtype: np.dtype[np.integer]
) -> Packed:
    """All texts' tokens in one array, each ended by `eod` when given."""
    end = np.zeros(0, dtype) if eod is None else np.array([eod], dtype)
    both = [(one, end) for one in encoded]
    lengths = np.fromiter((len(one) + len(end) for one, _ in both), np.int32, len(both))
    tokens = np.concatenate(
        [np.zeros(0, dtype), *(part for pair in both for part in pair)], dtype=dtype, casting="unsafe"
    )
    return Packed(tokens, lengths, sum(len(text.encode()) for text in texts))
