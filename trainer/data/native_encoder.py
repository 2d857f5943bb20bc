"""The encoder in C++, `csrc/data/prepare_encode.cpp`: tokens as they are stored, packed, from many texts at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from trainer.data.byte_level import CLASSES, SPACE, ByteLevelBpe, classes_of
from trainer.data.compiled import address

#: Bytes that may be read behind the texts.
_PADDING = bytes(32)
_CLASS_NUMBERS = {name: number for number, name in enumerate((*CLASSES, SPACE), 1)}
_CLASSES_ARE_MISSING = -2


class NativeEncoder:
    """Texts to tokens by a `ByteLevelBpe`; classes: what classes characters, replaced in a test.

    Not to be used by two threads at once.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        bpe: ByteLevelBpe,
        classes: Callable[[Sequence[str]], list[str]] = classes_of,
    ):
        self._classes = classes
        self._library = library
        symbols = np.array(bpe.symbol_of_byte, np.int32)
        columns = np.array(bpe.merges, np.int32).reshape(-1, 3).T.copy()
        self._encoder = library.prepare_encoder_new(
            address(symbols), *(address(column) for column in columns), len(bpe.merges)
        )
        if not self._encoder:
            raise MemoryError("no memory for the encoder")
        self._tell([chr(one) for one in range(128)])

    def __del__(self) -> None:
        if getattr(self, "_encoder", None):
            self._library.prepare_encoder_free(self._encoder)

    def packed(
        self, texts: Sequence[bytes], eod: int | None, dtype: np.dtype[np.integer]
    ) -> tuple[NDArray[np.integer], NDArray[np.int32]]:
        """All texts' tokens in one array, each text's ended by `eod` when given; how many each has.

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
                raise MemoryError("no memory for a text's tokens")
            self._tell(self._asked())

    def _asked(self) -> list[str]:
        """The characters whose class is missing."""
        asked = np.empty(0, np.uint32)
        while (found := self._library.prepare_encoder_asked(self._encoder, address(asked), len(asked))) > len(asked):
            asked = np.empty(found, np.uint32)
        return [chr(one) for one in asked.tolist()]

    def _tell(self, characters: Sequence[str]) -> None:
        which = np.array([ord(one) for one in characters], np.uint32)
        classes = np.array([_CLASS_NUMBERS[name] for name in self._classes(characters)], np.uint8)
        self._library.prepare_encoder_classes(self._encoder, address(which), address(classes), len(which))


def counter(library: ctypes.CDLL | None) -> Callable[[NDArray[np.integer], NDArray[np.int64]], None]:
    """What adds to counts[id] how often each id is among tokens: in C++, or with numpy where there is no library.

    It raises IndexError for a token beyond the counts.
    """
    return _count_with_numpy if library is None else partial(_count_natively, library)


def _count_natively(library: ctypes.CDLL, tokens: NDArray[np.integer], counts: NDArray[np.int64]) -> None:
    if library.prepare_count(address(tokens), len(tokens), tokens.dtype.itemsize, address(counts), len(counts)):
        raise IndexError(f"a token is not among {len(counts):,}")


def _count_with_numpy(tokens: NDArray[np.integer], counts: NDArray[np.int64]) -> None:
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(counts):
        raise IndexError(f"a token is not among {len(counts):,}")
    counts += np.bincount(tokens, minlength=len(counts))
