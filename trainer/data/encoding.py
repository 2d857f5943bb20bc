"""Encoding of the input's pieces in order, in this process or in several.

A worker process reads its pieces itself if they are places in files, and returns the bytes to write. It gets its work
through a pipe, so it ends when its parent ends for any reason.
"""

from __future__ import annotations

import os
import queue
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

import trainer
from trainer.data.corpus import Piece, Placed
from trainer.data.encoder import Encoder
from trainer.data.texts.piece import Skipped
from trainer.formats.errors import DataError

#: Pieces in work or waiting for earlier ones, per process.
_PIECES_EACH = 3
_LOOK_EVERY_S = 0.1
_FRAME = struct.Struct("<Q")


class Setting(msgspec.Struct, frozen=True):
    """The encoder's settings. tokenizer: the text of a tokenizer.json. dtype: of the stored tokens."""

    tokenizer: str
    eod: int | None
    dtype: str


class _Answer(msgspec.Struct, frozen=True):
    """The header that a worker sends before the tokens. error: empty on success."""

    engine: str = ""
    lengths: bytes = b""
    text_bytes: int = 0
    skipped: Skipped = msgspec.field(default_factory=Skipped)
    error: str | None = None


class Encoded(NamedTuple):
    """A piece's documents, as they are written. lengths: [documents], int32, in tokens. engine: the encoder."""

    tokens: NDArray[np.integer]
    lengths: NDArray[np.int32]
    text_bytes: int
    skipped: Skipped
    engine: str


class Encoding(Protocol):
    """An encoder of pieces, as a context manager."""

    def __enter__(self) -> Encoding: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def encoded(self, pieces: Iterator[Placed]) -> Iterator[tuple[Placed, Encoded]]:
        """Yield each piece with its encoded documents, in order. Raises DataError."""


def encoding(setting: Setting, processes: int) -> Encoding:
    """Return an encoder in this process, or in several."""
    return Here(setting) if processes == 1 else Workers(setting, processes)


class Here:
    """An encoder in this process."""

    def __init__(self, setting: Setting):
        self._setting = setting
        self._encoder = Encoder.fastest(Tokenizer.from_str(setting.tokenizer))

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: there is nothing to close."""

    def one(self, piece: Piece) -> Encoded:
        """Encode a piece."""
        skipped = Skipped()
        packed = self._encoder.packed(piece.texts(skipped), self._setting.eod, np.dtype(self._setting.dtype))
        return Encoded(packed.tokens, packed.lengths, packed.text_bytes, skipped, self._encoder.engine)

    def encoded(self, pieces: Iterator[Placed]) -> Iterator[tuple[Placed, Encoded]]:
        """See `Encoding.encoded`."""
        return ((placed, self.one(placed.piece)) for placed in pieces)


class Workers:
    """An encoder in worker processes, with several pieces at the same time."""

    def __init__(self, setting: Setting, processes: int):
        self._setting, self._count = setting, processes
        self._processes: list[_Worker] = []
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

    def __enter__(self) -> Workers:
        self._threads = ThreadPoolExecutor(self._count)
        for _ in range(self._count):
            worker = _Worker(self._setting)
            self._processes.append(worker)
            self._idle.put(worker)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._processes:
            worker.end()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def encoded(self, pieces: Iterator[Placed]) -> Iterator[tuple[Placed, Encoded]]:
        """See `Encoding.encoded`."""
        waiting: deque[tuple[Placed, Future[Encoded]]] = deque()
        for placed in pieces:
            waiting.append((placed, self._threads.submit(self._one, placed.piece)))
            while len(waiting) >= _PIECES_EACH * self._count:
                yield _first_of(waiting)
        while waiting:
            yield _first_of(waiting)

    def _one(self, piece: Piece) -> Encoded:
        worker = self._idle.get()
        try:
            return worker.one(piece)
        finally:
            self._idle.put(worker)


def _first_of(waiting: deque[tuple[Placed, Future[Encoded]]]) -> tuple[Placed, Encoded]:
    placed, future = waiting[0]
    while not wait([future], _LOOK_EVERY_S).done:  # signals are handled between two checks
        pass
    waiting.popleft()
    # Drop references to the requests, so that only results occupy memory.
    return placed, future.result()


class _Worker:
    """A process that runs this module's `main`."""

    def __init__(self, setting: Setting):
        self._dtype = np.dtype(setting.dtype)
        above = str(Path(trainer.__file__).resolve().parents[1])
        paths = os.pathsep.join(one for one in (above, os.environ.get("PYTHONPATH")) if one)
        # One thread each: tokenizers would use all cores in every process.
        environment = {**os.environ, "PYTHONPATH": paths, "TOKENIZERS_PARALLELISM": "false"}
        # Only the writer handles signals to the whole job or terminal. Child processes inherit blocked signals.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "trainer.data.encoding"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        self._setting: Setting | None = setting

    def one(self, piece: Piece) -> Encoded:
        """Encode a piece. Raises DataError, also if the process has ended."""
        try:
            if self._setting is not None:
                _send(self._to, msgspec.msgpack.encode(self._setting))
                self._setting = None
            _send(self._to, msgspec.msgpack.encode(piece))
            answer = msgspec.msgpack.decode(_receive(self._from), type=_Answer)
            if answer.error is not None:
                raise DataError(answer.error)
            tokens = np.frombuffer(_receive(self._from), self._dtype)
        except (OSError, EOFError, ValueError):
            raise DataError(f"an encoding process {self._how_it_ended()}") from None
        lengths = np.frombuffer(answer.lengths, np.int32)
        return Encoded(tokens, lengths, answer.text_bytes, answer.skipped, answer.engine)

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "gave an invalid answer"
        if code == -signal.SIGKILL:
            return "was killed by signal 9, perhaps out of memory"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_FRAME.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    """Read one message. Raises EOFError if the other end is closed."""
    size = pipe.read(_FRAME.size)
    if len(size) < _FRAME.size:
        raise EOFError
    data = pipe.read(wanted := _FRAME.unpack(size)[0])
    if len(data) < wanted:
        raise EOFError
    return data


def main() -> int:
    """Encode pieces in a worker process until the pipe is closed."""
    commands, answers = sys.stdin.buffer, sys.stdout.buffer
    try:
        here = Here(msgspec.msgpack.decode(_receive(commands), type=Setting))
        decoder = msgspec.msgpack.Decoder(Piece)
        while True:
            piece = decoder.decode(_receive(commands))
            try:
                done = here.one(piece)
            except DataError as error:
                _send(answers, msgspec.msgpack.encode(_Answer(error=str(error))))
                continue
            answer = _Answer(done.engine, done.lengths.tobytes(), done.text_bytes, done.skipped)
            _send(answers, msgspec.msgpack.encode(answer))
            _send(answers, done.tokens.tobytes())
    except (EOFError, BrokenPipeError):
        # Python's normal exit would flush to a closed pipe.
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
