"""The tokenizer of a preparation: the one given, or one trained on the corpus and kept beside the data."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import Tokenizer

from trainer.data import tokenizer as bpe
from trainer.data.corpus import Corpus
from trainer.data.progress import Progress, Waiting
from trainer.formats.errors import DataError

#: A tokenizer is trained on no more than this from the start of the input, in characters.
TRAINING_CHARACTERS = 1_000_000_000
DEFAULT_VOCAB_SIZE = 32_768


def place_in(folder: Path) -> Path:
    """Where a tokenizer that is trained belongs."""
    return folder / "tokenizer.json"


def train(corpus: Corpus, vocab_size: int) -> Tokenizer:
    """A tokenizer from the start of the corpus."""
    reading = Progress("reading for the tokenizer", min(corpus.total_bytes, TRAINING_CHARACTERS))
    learning = Waiting(f"training a tokenizer of {vocab_size:,} tokens")

    def texts() -> Iterator[str]:
        characters = 0
        with reading:
            for text, read_bytes in corpus.texts():
                yield text
                reading.reached(read_bytes)
                characters += len(text)
                if characters >= TRAINING_CHARACTERS:
                    break
        learning.begin()

    with learning:
        return _interruptible(lambda: bpe.train(texts(), vocab_size))


def _interruptible(work: Callable[[], Tokenizer]) -> Tokenizer:
    """Do `work` on a thread.

    Python hears signals on its main thread only, and native code would keep that one for hours.
    """
    done: queue.SimpleQueue[Tokenizer | BaseException] = queue.SimpleQueue()

    def thread() -> None:
        try:
            done.put(work())
        except BaseException as error:
            done.put(error)

    threading.Thread(target=thread, daemon=True).start()
    result: Tokenizer | BaseException | None = None
    while result is None:
        # With a time-out: a signal in the moment before a wait without one would be heard only after it.
        with contextlib.suppress(queue.Empty):
            result = done.get(timeout=0.1)
    if isinstance(result, BaseException):
        raise result
    return result


def refuse_other_tokenizer(file: Path, text: str, overwrite: bool) -> None:
    """Raises DataError when another tokenizer lies where ours would: other data beside it needs it."""
    if file.exists() and not overwrite and file.read_text(encoding="utf-8") != text:
        raise DataError(
            f"{file} is there already and differs; use it with --tokenizer {file}, or choose another folder"
        )
