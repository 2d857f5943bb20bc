"""Encoders of text: in C++ for a plain byte-level BPE, with tokenizers for everything else.

The encoder in C++ (`csrc/data/prepare_encode.cpp`) merges as tokenizers does, and uses tokenizers to classify
characters. The ids are the same.
"""

from __future__ import annotations

import ctypes
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, pre_tokenizers

from trainer.data import compiled
from trainer.data.compiled import address

#: Classes of characters in GPT-2's pattern, each with an example. All other characters are white space.
CLASSES = {"letter": "a", "number": "1", "other": "!"}
SPACE = "space"
#: Bytes that the encoder in C++ may read beyond the texts.
_PADDING = bytes(32)
_CLASS_NUMBERS = {name: number for number, name in enumerate((*CLASSES, SPACE), 1)}
_CLASSES_ARE_MISSING = -2


class Packed(NamedTuple):
    """The tokens of several texts in one array.

    tokens: [T], of the stored type. lengths: [texts], int32, in tokens. text_bytes: of the texts, in UTF-8.
    """

    tokens: NDArray[np.integer]
    lengths: NDArray[np.int32]
    text_bytes: int


class Encoder:
    """An encoder of texts. Names of special tokens in a text stay text."""

    def __init__(self, tokenizer: Tokenizer):
        tokenizer.encode_special_tokens = True
        # A tokenizer.json may have settings for fine-tuning, but a document is neither truncated nor padded.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        library = compiled.library()
        bpe = ByteLevelBpe.of(tokenizer) if library is not None else None
        self._native = NativeEncoder(library, bpe) if library is not None and bpe is not None else None
        #: The name in the notes of prepared data.
        self.engine = "tokenizers" if self._native is None else "native"

    def packed(self, texts: Sequence[str], eod: int | None, dtype: np.dtype[np.integer]) -> Packed:
        """Return the stored tokens of the texts, with `eod` after each if given."""
        raw = [text.encode() for text in texts]
        text_bytes = sum(map(len, raw))
        if self._native is not None:
            return Packed(*self._native.packed(raw, eod, dtype), text_bytes)
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        end = [] if eod is None else [eod]
        ids = [[*one.ids, *end] for one in encoded]
        tokens = np.fromiter(itertools.chain.from_iterable(ids), dtype)
        return Packed(tokens, np.fromiter(map(len, ids), np.int32, len(ids)), text_bytes)

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text."""
        ids: list[int] = self.packed([text], None, np.dtype(np.int32)).tokens.tolist()
        return ids


@dataclass(frozen=True)
class ByteLevelBpe:
    """A byte-level BPE.

    symbol_of_byte: 256 ids. merges: (left, right, result) ids in the order of merging.
    """

    symbol_of_byte: tuple[int, ...]
    merges: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ByteLevelBpe | None:
        """Return the BPE of `tokenizer`; None if anything else affects the ids, or merges have no result."""
        spec = json.loads(tokenizer.to_str())
        if not _is_plain(spec):
            return None
        vocab: dict[str, int] = spec["model"]["vocab"]
        byte_of = _bytes_of_characters()
        pairs = [tuple(pair if isinstance(pair, list) else pair.split(" ")) for pair in spec["model"]["merges"]]
        possible = {*byte_of, *("".join(pair) for pair in pairs)}
        if len(set(pairs)) != len(pairs) or not {*possible, *itertools.chain.from_iterable(pairs)} <= vocab.keys():
            return None
        return cls(
            tuple(vocab[character] for character, _ in sorted(byte_of.items(), key=lambda item: item[1])),
            tuple((vocab[left], vocab[right], vocab[left + right]) for left, right in pairs),
        )


class NativeEncoder:
    """A C++ encoder for a `ByteLevelBpe`. Not thread-safe."""

    def __init__(self, library: ctypes.CDLL, bpe: ByteLevelBpe):
        self._library = library
        symbols = np.array(bpe.symbol_of_byte, np.int32)
        columns = np.array(bpe.merges, np.int32).reshape(-1, 3).T.copy()
        self._encoder = library.prepare_encoder_new(
            address(symbols), *(address(column) for column in columns), len(bpe.merges)
        )
        if not self._encoder:
            raise MemoryError("not enough memory for the encoder")
        self._set_classes([chr(one) for one in range(128)])

    def __del__(self) -> None:
        if getattr(self, "_encoder", None):
            self._library.prepare_encoder_free(self._encoder)

    def packed(
        self, texts: Sequence[bytes], eod: int | None, dtype: np.dtype[np.integer]
    ) -> tuple[NDArray[np.integer], NDArray[np.int32]]:
        """Return all texts' tokens in one array, with `eod` after each if given, and their numbers of tokens.

        texts: UTF-8.
        """
        together = b"".join((*texts, _PADDING))
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        lengths = np.empty(len(texts), np.int32)
        tokens: NDArray[np.integer] = np.empty(len(together) + len(texts), dtype)
        end_token = -1 if eod is None else eod
        while True:
            given = (together, address(ends), len(texts), end_token, dtype.itemsize, address(tokens), address(lengths))
            count = self._library.prepare_encode(self._encoder, *given)
            if count >= 0:
                return tokens[:count], lengths
            if count != _CLASSES_ARE_MISSING:
                raise MemoryError("not enough memory for a text's tokens")
            self._set_classes(self._unclassified())

    def _unclassified(self) -> list[str]:
        """Return the characters whose class is unknown."""
        asked = np.empty(0, np.uint32)
        while (found := self._library.prepare_encoder_asked(self._encoder, address(asked), len(asked))) > len(asked):
            asked = np.empty(found, np.uint32)
        return [chr(one) for one in asked.tolist()]

    def _set_classes(self, characters: Sequence[str]) -> None:
        which = np.array([ord(one) for one in characters], np.uint32)
        classes = np.array([_CLASS_NUMBERS[name] for name in classes_of(characters)], np.uint8)
        self._library.prepare_encoder_classes(self._encoder, address(which), address(classes), len(which))


def classes_of(characters: Iterable[str]) -> list[str]:
    """Return the class of each character in tokenizers: a name of CLASSES, or SPACE.

    tokenizers splits a text at each change of class, so a character joins a preceding one of its own class.
    """
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return [
        next((name for name, lead in CLASSES.items() if len(words.pre_tokenize_str(lead + one)) == 1), SPACE)
        for one in characters
    ]


def _is_plain(spec: dict[str, Any]) -> bool:
    """Return True if a tokenizer.json is byte-level BPE without anything else that affects ids."""
    model, words = spec["model"], spec["pre_tokenizer"]
    return (
        model["type"] == "BPE"
        and not any(
            model.get(key)
            for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
        )
        and spec["normalizer"] is None
        and all(token["special"] for token in spec["added_tokens"])
        and words is not None
        and words["type"] == "ByteLevel"
        and not words["add_prefix_space"]
        and words.get("use_regex", True)
    )


def _bytes_of_characters() -> dict[str, int]:
    """Return the byte of each character of the byte-level alphabet.

    Printable characters map to themselves; the rest start at 256.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in printable]
    return table | {chr(256 + position): byte for position, byte in enumerate(hidden)}
