"""Encoding of the input's pieces in order, in this process or in several."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.core.parent import end_with_parent
from trainer.data.corpus import Placed
from trainer.data.encoder import Encoder
from trainer.data.pieces import Piece, Skipped
from trainer.formats.errors import DataError

#: Pieces in work or waiting for earlier ones, per process.
_PIECES_EACH = 3
_POLL_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Encoded(NamedTuple):
    """A piece's documents, as they are written. lengths: [documents], int32, in tokens. engine: the encoder."""

    tokens: NDArray[np.integer]
    lengths: NDArray[np.int32]
    text_bytes: int
    skipped: Skipped
    engine: str


class PieceEncoder:
    """An encoder of pieces. tokenizer: the text of a tokenizer.json. dtype: of the stored tokens."""

    def __init__(self, tokenizer: str, eod: int | None, dtype: str):
        self.arguments = tokenizer, eod, dtype
        self._encoder, self._eod, self._dtype = Encoder(Tokenizer.from_str(tokenizer)), eod, np.dtype(dtype)

    def __call__(self, piece: Piece) -> Encoded:
        """Encode a piece. Raises DataError."""
        skipped = Skipped()
        packed = self._encoder.packed(piece.texts(skipped), self._eod, self._dtype)
        return Encoded(*packed, skipped, self._encoder.engine)


def encoded(encoder: PieceEncoder, pieces: Iterator[Placed], processes: int) -> Iterator[tuple[Placed, Encoded]]:
    """Yield each piece with its encoded documents, in order. Raises DataError."""
    if processes == 1:
        yield from ((placed, encoder(placed.piece)) for placed in pieces)
        return
    waiting: deque[tuple[Placed, Future[Encoded]]] = deque()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _begin_worker, encoder.arguments) as pool:
        try:
            for placed in pieces:
                with _signals_blocked():
                    waiting.append((placed, pool.submit(_encode, placed.piece)))
                while len(waiting) >= _PIECES_EACH * processes:
                    yield _first_of(waiting)
            while waiting:
                yield _first_of(waiting)
        except BrokenProcessPool:
            raise DataError("an encoding process was killed, perhaps out of memory") from None
        finally:
            pool.shutdown(cancel_futures=True)


def _first_of(waiting: deque[tuple[Placed, Future[Encoded]]]) -> tuple[Placed, Encoded]:
    placed, future = waiting[0]
    while not wait([future], _POLL_S).done:  # signals are handled between two checks
        pass
    waiting.popleft()
    return placed, future.result()


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals to the whole job or terminal: new processes inherit that, and only the writer handles them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_encoder: PieceEncoder


def _begin_worker(tokenizer: str, eod: int | None, dtype: str) -> None:
    """Prepare a worker process. It ends when its parent ends for any reason."""
    global _encoder
    end_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # otherwise tokenizers would use all cores in every process
    _encoder = PieceEncoder(tokenizer, eod, dtype)


def _encode(piece: Piece) -> Encoded:
    return _encoder(piece)
