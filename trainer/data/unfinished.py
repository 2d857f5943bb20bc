"""A pair of data files in preparation. Its complete part is kept, and the same command continues from there.

Next to `.bin.partial` are `.lengths.partial` (int32, tokens of each document), `.tokenizer.partial` if one was
trained, and `.state.partial`, which records how much of them is complete and the preparation's inputs. The state is
written last, when everything that it describes is synced to disk.
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

from trainer.core.files import be_as_open_as_its_folder, read_plain, write_atomically
from trainer.data.corpus import BEGINNING, Placed, Position
from trainer.data.encoding import Encoded
from trainer.data.indexed import IndexedWriter, token_dtype
from trainer.data.texts.piece import PIECE_BYTES, Skipped
from trainer.formats.data.index_header import bin_path, idx_path
from trainer.formats.data.vocabulary_files import notes_path
from trainer.formats.errors import DataError
from trainer.formats.json_text import json_file_text

#: Seconds of work that a killed preparation loses at most.
SAVE_EVERY_S = 10.0
#: Those of `Asked.options`, if the tokenizer is trained on the input.
VOCAB_SIZE = "--vocab-size"
_LARGEST_STATE_BYTES = 1 << 30
_READ_BYTES = 8 << 20


class Asked(msgspec.Struct, frozen=True):
    """The inputs that must be the same to continue. options: words to values. sources: (name, identity), in order."""

    options: dict[str, str]
    sources: list[tuple[str, str]]
    piece_bytes: int = PIECE_BYTES


class State(msgspec.Struct, frozen=True):
    """The complete part of a preparation.

    tokenizer_sha256: of the one in use. behind: the input position where the part ends, after read_bytes.
    tokens_sha256: of the tokens' bytes. text_bytes: of the documents' text. engine: the encoder.
    """

    asked: Asked
    tokenizer_sha256: str
    behind: Position = BEGINNING
    documents: int = 0
    tokens: int = 0
    tokens_sha256: str = hashlib.sha256().hexdigest()
    text_bytes: int = 0
    read_bytes: int = 0
    skipped: Skipped = msgspec.field(default_factory=Skipped)
    engine: str = ""


class Leftovers:
    """The files next to an unfinished pair."""

    def __init__(self, prefix: Path):
        self.prefix = prefix
        self.tokens = Path(f"{bin_path(prefix)}.partial")
        self.lengths, self.tokenizer, self.state = (
            Path(f"{prefix}.{name}.partial") for name in ("lengths", "tokenizer", "state")
        )

    def written(self) -> list[Path]:
        """Return all files of a preparation, temporary and finished, except a tokenizer shared with other data."""
        pair = [path(self.prefix) for path in (bin_path, idx_path, notes_path)]
        return [self.tokens, self.lengths, self.tokenizer, self.state, Path(f"{pair[1]}.partial"), *pair]

    def read_state(self) -> State | None:
        """Read the state; None if nothing was kept. Raises DataError if it cannot be read."""
        try:
            return msgspec.json.decode(read_plain(self.state, _LARGEST_STATE_BYTES), type=State)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            raise DataError(f"{self.state} cannot be read ({error}); --overwrite starts again") from None

    def read_tokenizer(self, state: State) -> str | None:
        """Return the trained tokenizer; None without one, or if it is another one."""
        try:
            text = read_plain(self.tokenizer, _LARGEST_STATE_BYTES).decode()
        except (OSError, UnicodeDecodeError):
            return None
        return text if hashlib.sha256(text.encode()).hexdigest() == state.tokenizer_sha256 else None

    def words(self, wrong: str = "") -> str:
        """Return what is kept, for the end of a message. wrong: an error in the input, or empty."""
        try:
            state = self.read_state()
        except DataError:
            state = None
        if state is None:
            return "no files remain"
        kept = f"{state.documents:,} documents are" if state.documents else "the tokenizer is"
        if any(name in wrong for name, _ in state.asked.sources[: _settled(state.asked, state.behind)]):
            return f"{kept} kept, but not beyond a change of this input: fix it and give --overwrite"
        return f"{kept} kept; run the same command again to continue"

    def remove(self) -> None:
        """Remove everything except the tokens, which their writer removes."""
        for path in (self.state, self.tokenizer, notes_path(self.prefix)):
            for begun in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # `write_atomically`'s files
                begun.unlink(missing_ok=True)
        # The state last: the next start needs it to find the rest.
        for path in (self.lengths, self.tokenizer, self.state):
            path.unlink(missing_ok=True)


def differences(kept: Asked, asked: Asked, behind: Position) -> str:
    """Return why the kept part cannot be continued; empty if it can.

    Input that was not started may have changed, unless the tokenizer depends on it.
    """
    for word in sorted({*kept.options, *asked.options}):
        was, now = (options.get(word, "nothing") for options in (kept.options, asked.options))
        if was != now:
            return f"{word} was {was}, not {now}"
    if kept.piece_bytes != asked.piece_bytes:
        return "another version wrote it"
    if len(kept.sources) != len(asked.sources):
        return f"the input was {len(kept.sources):,} files or folders, not {len(asked.sources):,}"
    for was_there, there in zip(kept.sources[: _settled(asked, behind)], asked.sources, strict=False):
        if was_there != there:
            same_name = was_there[0] == there[0]
            return f"{there[0]} has changed since" if same_name else f"the input had {was_there[0]}, not {there[0]}"
    return ""


def _settled(asked: Asked, behind: Position) -> int:
    """Return how many sources, from the first, must be unchanged."""
    return len(asked.sources) if VOCAB_SIZE in asked.options else behind.source + (behind.piece > 0)


def _locked(path: Path) -> BinaryIO | None:
    """Open and lock the file to continue; None without one of ours. Raises BlockingIOError if it is locked."""
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC), "ab")
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    return file


class UnfinishedPair(IndexedWriter):
    """A writer of a pair that continues an earlier preparation. Leaving it early keeps the complete part.

    A second writer on the same prefix is refused while the first exists. state: what is written so far. counts:
    [vocab], the number of times that each id occurs.
    """

    state: State
    counts: NDArray[np.int64]

    def __init__(self, leftovers: Leftovers, saved: Callable[[], None] = lambda: None):
        """Open the pair. saved: called each time more is synced to disk."""
        super().__init__(leftovers.prefix, token_dtype(0))  # `go_on` knows which
        self._saved = saved
        self._leftovers = leftovers
        self._digest = hashlib.sha256()
        self._lengths_file: BinaryIO | None = None
        self._is_under_way, self._is_to_be_kept = False, True

    def __enter__(self) -> UnfinishedPair:
        super().__enter__()
        return self

    def _begin(self) -> None:
        """Truncate nothing before `go_on` has checked it; the lock is held.

        A process that puts a pair in place holds the lock on what is then the `.bin`, until it has cleaned up.
        """
        is_empty = not os.fstat(self._file.fileno()).st_size
        try:
            placed = _locked(bin_path(self.prefix))
        except BlockingIOError:
            if is_empty:
                self._leftovers.tokens.unlink()  # otherwise it would be taken for the other one's file
            self._file.close()
            raise DataError(f"another process is writing {self.prefix}; wait for it or choose another prefix") from None
        try:
            if is_empty:
                placed = self._set_right(placed)
        finally:
            if placed is not None:
                placed.close()

    def _set_right(self, placed: BinaryIO | None) -> BinaryIO | None:
        """Clean up after a preparation that was killed while it renamed its files.

        placed: the `.bin`, locked. Returns the file of the two that is not needed.
        """
        try:
            state = self._leftovers.read_state()
        except DataError:
            return placed
        if state is None or not state.tokens:
            return placed
        if idx_path(self.prefix).exists() or not bin_path(self.prefix).exists():
            self._leftovers.remove()  # it had finished, or its tokens are missing
        elif placed is not None:
            bin_path(self.prefix).replace(self._leftovers.tokens)
            placed, self._file = self._file, placed
        return placed

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_under_way:
            # On a full disk the synced part stays.
            with contextlib.suppress(OSError):
                self.save_if_whole()
        if self._lengths_file is not None:
            with contextlib.suppress(OSError):
                self._lengths_file.close()
        if self._is_to_be_kept and self._leftovers.state.exists():
            with contextlib.suppress(OSError):
                self._file.close()
        else:
            self._leftovers.remove()
            super().__exit__(kind, error, trace)

    def go_on(self, state: State, vocab_size: int) -> None:
        """Take the part that `state` describes, and truncate what follows it.

        Raises DataError if that part is missing, or not what was written.
        """
        self.dtype = token_dtype(vocab_size)
        self._digest = hashlib.sha256()
        self.counts = np.zeros(vocab_size, np.int64)
        if self._lengths_file is not None:
            self._lengths_file.close()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lengths_file = lengths_file = os.fdopen(os.open(self._leftovers.lengths, flags, 0o666), "a+b")
        be_as_open_as_its_folder(self._leftovers.lengths)
        lengths_file.truncate(4 * state.documents)
        self._file.truncate(state.tokens * self.dtype.itemsize)
        lengths_file.seek(0)
        lengths = np.frombuffer(lengths_file.read(), "<i4")
        if not self._are_tokens_of(state) or int(lengths.sum(dtype=np.int64)) != state.tokens:
            raise DataError(
                f"{self._leftovers.tokens} is not as it was written; start again with --overwrite, or remove it"
            )
        self._lengths.append(lengths)
        self.state = state
        self._saved_at = time.monotonic()
        self._is_under_way = True

    def append(self, placed: Placed, piece: Encoded) -> None:
        """Write a piece's documents, and sync now and then."""
        assert self._lengths_file is not None
        self.add(piece.tokens, piece.lengths)
        self._lengths_file.write(np.asarray(piece.lengths, "<i4").tobytes())
        self._digest.update(piece.tokens.data)
        add_counts(piece.tokens, self.counts)
        skipped = msgspec.structs.replace(self.state.skipped)
        skipped.add(piece.skipped)
        self.state = msgspec.structs.replace(
            self.state,
            behind=placed.behind,
            read_bytes=placed.read_bytes,
            documents=self.state.documents + len(piece.lengths),
            tokens=self.state.tokens + len(piece.tokens),
            tokens_sha256=self._digest.hexdigest(),
            text_bytes=self.state.text_bytes + piece.text_bytes,
            skipped=skipped,
            engine=piece.engine,
        )
        if time.monotonic() - self._saved_at >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Sync what is written, then record it in the state. Raises OSError; the earlier state then stays valid."""
        assert self._lengths_file is not None
        for file in (self._file, self._lengths_file):
            file.flush()
            os.fsync(file.fileno())
        write_atomically(self._leftovers.state, json_file_text(self.state))
        self._saved_at = time.monotonic()
        self._saved()

    def save_if_whole(self) -> None:
        """Save if there is anything that the next start can reuse."""
        if self.state.documents or self._leftovers.tokenizer.exists():
            self.save()

    def finish(self, others: Callable[[], None]) -> None:
        """Put the pair in place, as `IndexedWriter.place` does, and remove the leftovers."""
        self.save()
        self.place(others)
        self.discard()

    def words(self, wrong: str) -> str:
        """See `Leftovers.words`."""
        return self._leftovers.words(wrong)

    def discard(self) -> None:
        """Discard everything next to the pair."""
        self._is_under_way = self._is_to_be_kept = False

    def _are_tokens_of(self, state: State) -> bool:
        """Return True if the tokens have the recorded count and checksum."""
        with self._leftovers.tokens.open("rb") as file:
            while block := file.read(_READ_BYTES):
                self._digest.update(block)
                try:
                    add_counts(np.frombuffer(block, self.dtype), self.counts)
                except IndexError:  # beyond the vocabulary
                    return False
        return self._digest.hexdigest() == state.tokens_sha256


def add_counts(tokens: NDArray[np.integer], counts: NDArray[np.int64]) -> None:
    """Add the number of each id in `tokens` to counts[id]. Raises IndexError for an id beyond the counts."""
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(counts):
        raise IndexError(f"a token is not among {len(counts):,}")
    counts += np.bincount(tokens, minlength=len(counts))
