"""A pair of data files in preparation. Its complete part is kept, and the same command continues from there.

Next to `.bin.partial` are `.lengths.partial` (int32, tokens of each document), `.tokenizer.partial` if one was
trained, and `.state.partial`, which records how much of them is complete and the preparation's inputs. The state is
written last, when everything that it describes is synced to disk. `.lengths.partial` is locked by its writer.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainer.core.files import be_as_open_as_its_folder, create_file, fsync, read_plain, write_atomically
from trainer.data.corpus import BEGINNING, Placed, Position
from trainer.data.encoding import Encoded
from trainer.data.indexed import index_bytes, token_dtype
from trainer.data.pieces import Skipped, shown
from trainer.formats.data.index_header import bin_path, idx_path
from trainer.formats.data.vocabulary_files import notes_path
from trainer.formats.errors import DataError
from trainer.formats.json_text import json_file_text

#: Seconds of work that a killed preparation loses at most.
SAVE_EVERY_S = 10.0
#: Those of `State.options`, if the tokenizer is trained on the input.
VOCAB_SIZE = "--vocab-size"
_LARGEST_STATE_BYTES = 1 << 30
_READ_BYTES = 8 << 20
_START_AGAIN = "--overwrite starts again"


class State(msgspec.Struct, frozen=True):
    """The complete part of a preparation.

    options: words to values; sources: the identity of each, in order; both must be the same to continue.
    behind: the input position where the part ends, after read_bytes. tokens_sha256: of the tokens' bytes.
    """

    options: dict[str, str]
    sources: list[str]
    tokenizer_sha256: str
    behind: Position = BEGINNING
    documents: int = 0
    tokens: int = 0
    tokens_sha256: str = hashlib.sha256().hexdigest()
    text_bytes: int = 0
    read_bytes: int = 0
    skipped: dict[str, int] = {}
    engine: str = ""

    def refuse_other(self, options: dict[str, str], sources: list[str], prefix: Path) -> None:
        """Raise DataError if the part cannot be continued with these.

        Sources that were not started may have changed, unless the tokenizer depends on them.
        """
        why = [f"{word} was {was}" for word, was in self.options.items() if options.get(word) != was]
        started = len(sources) if VOCAB_SIZE in options else self.behind.source + (self.behind.piece > 0)
        if not why and (len(sources) != len(self.sources) or sources[:started] != self.sources[:started]):
            why = ["its input was another, or has changed since"]
        if why:
            raise DataError(f"{shown(prefix)} was started by another preparation: {why[0]}; {_START_AGAIN}")


class UnfinishedPair:
    """A writer of a pair that can continue an earlier preparation. Leaving it early keeps the complete part.

    A second writer on the same prefix is refused while the first exists. state: what is written so far. counts:
    [vocab], the number of times that each id occurs. saved: called each time more is synced to disk.
    """

    state: State
    counts: NDArray[np.int64]
    dtype: np.dtype[np.integer]
    _tokens_file: BinaryIO
    _lengths_file: BinaryIO

    def __init__(self, prefix: Path, saved: Callable[[], None] = lambda: None):
        self.prefix, self._saved = prefix, saved
        self._tokens, self._index = (Path(f"{path(prefix)}.partial") for path in (bin_path, idx_path))
        self._lengths, self.tokenizer, self._state = (
            Path(f"{prefix}.{name}.partial") for name in ("lengths", "tokenizer", "state")
        )
        self._is_under_way = False

    def __enter__(self) -> UnfinishedPair:
        self._lengths_file = _opened(self._lengths)
        try:
            fcntl.flock(self._lengths_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lengths_file.close()
            raise DataError(f"another process is writing {self.prefix}; wait for it or choose another prefix") from None
        try:
            is_ours = os.path.samestat(os.fstat(self._lengths_file.fileno()), self._lengths.lstat())
        except FileNotFoundError:
            is_ours = False
        if not is_ours:
            self._lengths_file.close()
            raise DataError(f"another process has just written {self.prefix}; check it, and try again")
        try:
            self._clean_up_after_renames()
            self._tokens_file = _opened(self._tokens)
            for path in (self._tokens, self._lengths):
                be_as_open_as_its_folder(path)
        except KeyboardInterrupt:  # `with` calls no `__exit__` if `__enter__` raises
            if not self._state.exists():
                self.discard()
            raise
        return self

    def _clean_up_after_renames(self) -> None:
        """Clean up after a preparation that was killed while it renamed its files."""
        if self._state.exists() and not self._tokens.exists():
            if idx_path(self.prefix).exists() or not bin_path(self.prefix).exists():
                self._state.unlink()  # it had finished, or its tokens are missing
            else:
                bin_path(self.prefix).replace(self._tokens)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # on a full disk the synced part stays
            if self._is_under_way and (self.state.documents or self.tokenizer.exists()):
                self.save()
        if not self._state.exists():
            self.discard()
        for file in (self._tokens_file, self._lengths_file):
            with contextlib.suppress(OSError):
                file.close()

    def kept(self) -> State | None:
        """Read the state of an earlier start; None without one. Raises DataError if it cannot be read."""
        try:
            return msgspec.json.decode(read_plain(self._state, _LARGEST_STATE_BYTES), type=State)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            raise DataError(f"{self._state} cannot be read ({error}); {_START_AGAIN}") from None

    def kept_tokenizer(self, state: State) -> str:
        """Return the trained tokenizer of an earlier start. Raises DataError if it is missing, or another one."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = read_plain(self.tokenizer, _LARGEST_STATE_BYTES).decode()
            if hashlib.sha256(text.encode()).hexdigest() == state.tokenizer_sha256:
                return text
        raise DataError(f"{shown(self.tokenizer)} is not the tokenizer that was trained; {_START_AGAIN}")

    def kept_text(self) -> str:
        """Return what is kept, for the end of a message."""
        state = None
        with contextlib.suppress(DataError):
            state = self.kept()
        if state is None:
            return "no files remain"
        kept = f"{state.documents:,} documents are" if state.documents else "the tokenizer is"
        return f"{kept} kept; run the same command again to continue"

    def start_again(self, state: State, vocab_size: int) -> None:
        """Begin with the empty `state`, and drop what an earlier start has kept."""
        for path in (self._state, self.tokenizer):
            path.unlink(missing_ok=True)
        self.begin(state, vocab_size)

    def begin(self, state: State, vocab_size: int) -> None:
        """Take the part that `state` describes, and truncate what follows it.

        Raises DataError if that part is missing, or not what was written.
        """
        self.dtype = token_dtype(vocab_size)
        self._digest = hashlib.sha256()
        self.counts = np.zeros(vocab_size, np.int64)
        self._lengths_file.truncate(4 * state.documents)
        self._tokens_file.truncate(state.tokens * self.dtype.itemsize)
        try:
            with self._tokens.open("rb") as file:
                while block := file.read(_READ_BYTES):
                    self._digest.update(block)
                    add_counts(np.frombuffer(block, self.dtype), self.counts)
            is_whole = int(self._all_lengths().sum(dtype=np.int64)) == state.tokens
        except IndexError:
            is_whole = False
        if not is_whole or self._digest.hexdigest() != state.tokens_sha256:
            raise DataError(f"{self._tokens} is not as it was written; {_START_AGAIN}")
        self.state = state
        self._saved_at = time.monotonic()
        self._is_under_way = True

    def _all_lengths(self) -> NDArray[np.int32]:
        self._lengths_file.seek(0)
        return np.frombuffer(self._lengths_file.read(), "<i4")

    def append(self, placed: Placed, piece: Encoded) -> None:
        """Write a piece's documents, and sync now and then."""
        self._tokens_file.write(piece.tokens.data)
        self._lengths_file.write(np.asarray(piece.lengths, "<i4").tobytes())
        self._digest.update(piece.tokens.data)
        add_counts(piece.tokens, self.counts)
        self.state = msgspec.structs.replace(
            self.state,
            behind=placed.behind,
            read_bytes=placed.read_bytes,
            documents=self.state.documents + len(piece.lengths),
            tokens=self.state.tokens + len(piece.tokens),
            tokens_sha256=self._digest.hexdigest(),
            text_bytes=self.state.text_bytes + piece.text_bytes,
            skipped=dict(Skipped(self.state.skipped) + piece.skipped),
            engine=piece.engine,
        )
        if time.monotonic() - self._saved_at >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Sync what is written, then record it in the state. Raises OSError; the earlier state then stays valid."""
        for file in (self._tokens_file, self._lengths_file):
            file.flush()
            os.fsync(file.fileno())
        write_atomically(self._state, json_file_text(self.state))
        self._saved_at = time.monotonic()
        self._saved()

    def place(self, others: Callable[[], None]) -> None:
        """Put the pair in place, the `.idx` last: an existing `.idx` describes a whole `.bin`.

        `others` puts files that belong to the pair in place while there is no `.idx`.
        """
        self.save()
        self._index.unlink(missing_ok=True)
        with os.fdopen(create_file(self._index), "wb") as index:
            index.writelines(index_bytes(self._all_lengths(), self.dtype))
            index.flush()
            os.fsync(index.fileno())
        idx_path(self.prefix).unlink(missing_ok=True)
        others()
        self._tokens.replace(bin_path(self.prefix))
        self._index.replace(idx_path(self.prefix))
        fsync(idx_path(self.prefix).parent)
        self.discard()

    def discard(self) -> None:
        """Remove everything next to the pair. The state is next to last, and last the lock."""
        self._is_under_way = False
        for path in (self._state, self.tokenizer, notes_path(self.prefix)):
            for begun in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # `write_atomically`'s files
                begun.unlink(missing_ok=True)
        for path in (self._tokens, self._index, self.tokenizer, self._state, self._lengths):
            path.unlink(missing_ok=True)


def _opened(path: Path) -> BinaryIO:
    """Open a file for reading and appending. It is not truncated, and links are not followed."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "a+b")


def add_counts(tokens: NDArray[np.integer], counts: NDArray[np.int64]) -> None:
    """Add the number of each id in `tokens` to counts[id]. Raises IndexError for an id beyond the counts."""
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(counts):
        raise IndexError(f"a token is not among {len(counts):,}")
    counts += np.bincount(tokens, minlength=len(counts))
