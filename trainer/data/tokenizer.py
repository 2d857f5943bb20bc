"""Byte-level BPE tokenizers: training, loading, size and end of documents."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.core.console import complain
from trainer.data.corpus import Corpus
from trainer.data.program import QUIET_S, Progress
from trainer.formats.data.vocabulary_files import Noted, tokenizer_path
from trainer.formats.errors import DataError

END_OF_DOCUMENT = "<|endoftext|>"
#: Names of the end of a document in vocabularies, in order of preference.
END_NAMES = (END_OF_DOCUMENT, "</s>", "<eos>", "<|end_of_text|>")
#: 256 bytes and the end of a document.
SMALLEST_VOCAB = 257


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE of at most `vocab_size` tokens on `texts`. Id 0 is the end of a document.

    The same texts give the same ids.
    """
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def load(path: Path) -> Tokenizer:
    """Load the tokenizer in `path`.

    It is a tokenizer.json, a folder with one, or a folder with vocab.json and merges.txt (GPT-2's files).
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    vocab, merges = path / "vocab.json", path / "merges.txt"
    try:
        if path.is_dir() and not file.is_file() and vocab.is_file() and merges.is_file():
            return load_vocab_and_merges(vocab, merges)
        if not file.is_file():
            raise DataError(f"no tokenizer at {path}: expected tokenizer.json, or vocab.json with merges.txt")
        return Tokenizer.from_file(str(file))
    except DataError:
        raise
    except Exception as error:  # tokenizers raises bare Exception
        raise DataError(f"{file} is not a readable tokenizer: {str(error).splitlines()[0]}") from None


def load_vocab_and_merges(vocab: Path, merges: Path) -> Tokenizer:
    """Load GPT-2's two files. `<|endoftext|>` is special if the vocabulary has it. Raises DataError."""
    try:
        tokenizer = _byte_level(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # tokenizers raises bare Exception
        raise DataError(f"{vocab} with {merges} cannot be read: {str(error).splitlines()[0]}") from None
    if tokenizer.token_to_id(END_OF_DOCUMENT) is not None:
        tokenizer.add_special_tokens([END_OF_DOCUMENT])
    return tokenizer


def named_by(options: Mapping[str, Any]) -> tuple[Tokenizer, Path] | None:
    """Return the tokenizer that the options name, and its file or folder; None if they name none. Raises DataError."""
    if options.get("tokenizer_name_or_path"):
        path = tokenizer_path(str(options["tokenizer_name_or_path"]))
        return load(path), path
    if options.get("vocab_file") and options.get("merge_file"):
        vocab = Path(options["vocab_file"])
        return load_vocab_and_merges(vocab, Path(options["merge_file"])), vocab
    return None


def noted_by(noted: Noted) -> Tokenizer:
    """Return the tokenizer in the notes of prepared data. Raises DataError, also if it has changed since."""
    tokenizer = load(Path(noted.tokenizer))
    found = hashlib.sha256(tokenizer.to_str(pretty=True).encode()).hexdigest()
    if noted.tokenizer_sha256 not in (None, found):
        raise DataError(
            f"{noted.tokenizer} is not the tokenizer of the data: its SHA-256 is {found}, expected "
            f"{noted.tokenizer_sha256}"
        )
    return tokenizer


def vocab_size(tokenizer: Tokenizer) -> int:
    """Return one more than the largest id: the size for an embedding, even if some ids are unused."""
    return int(max(tokenizer.get_vocab(with_added_tokens=True).values())) + 1


def end_of_document(tokenizer: Tokenizer) -> int:
    """Return the id that ends a document. Raises DataError if the vocabulary has none of the known names."""
    for name in END_NAMES:
        found = tokenizer.token_to_id(name)
        if found is not None:
            return int(found)
    raise DataError(
        f"the tokenizer has none of {', '.join(END_NAMES)} to end documents; give --no-append-eod to omit it"
    )


#: A tokenizer is trained on at most so many characters from the start of the input.
TRAINING_CHARACTERS = 1_000_000_000
DEFAULT_VOCAB_SIZE = 32_768


def train_on(corpus: Corpus, vocab_size: int) -> Tokenizer:
    """Train a tokenizer on the start of the corpus.

    The training runs on a thread: Python handles signals on its main thread only, and native code would block that one
    for hours.
    """

    def texts() -> Iterator[str]:
        characters, began = 0, time.monotonic()
        with Progress("reading text for the tokenizer", min(corpus.total_bytes, TRAINING_CHARACTERS)) as reading:
            for text, read_bytes in corpus.texts():
                yield text
                reading.reached(read_bytes)
                characters += len(text)
                if characters >= TRAINING_CHARACTERS:
                    break
        if time.monotonic() - began > QUIET_S:
            complain(f"training a tokenizer of {vocab_size:,} tokens ...")

    done: queue.SimpleQueue[Tokenizer | BaseException] = queue.SimpleQueue()

    def thread() -> None:
        try:
            done.put(train(texts(), vocab_size))
        except BaseException as error:
            done.put(error)

    threading.Thread(target=thread, daemon=True).start()
    result: Tokenizer | BaseException | None = None
    while result is None:
        # With a time-out: a signal just before a wait without one would be handled only after it.
        with contextlib.suppress(queue.Empty):
            result = done.get(timeout=0.1)
    if isinstance(result, BaseException):
        raise result
    return result
