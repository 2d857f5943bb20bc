"""`python -m trainer.data.prepare INPUT --output-prefix P`.

Text to `P_<key>_document.{bin,idx,json}`, and `tokenizer.json` beside them.

The `.json` holds documents, tokens, vocab_size, entropy_nats (of single tokens, so what a model that knows nothing
but their frequencies would score), the tokenizer and checksums. Needs neither torch nor a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from trainer.data import corpus_tokenizer
from trainer.data import tokenizer as bpe
from trainer.data.corpus import Document, Folder, JsonLines, Skipped, open_corpus, shown
from trainer.data.corpus_tokenizer import DEFAULT_VOCAB_SIZE
from trainer.data.indexed import IndexedWriter, token_dtype
from trainer.data.progress import Progress
from trainer.files import make_folder, write_atomically
from trainer.formats.data_notes import DataNotes, PreparedData, SkippedCounts, write_notes
from trainer.formats.errors import DataError
from trainer.formats.index_header import idx_path
from trainer.formats.json_text import json_file_text
from trainer.say import failed

#: Text encoded and written at a time, in characters.
BATCH_CHARACTERS = 4_000_000
MOST_WORKERS = 16


def parser() -> argparse.ArgumentParser:
    """The command's options; `opsctl data prepare` has the same."""
    result = argparse.ArgumentParser(
        "python -m trainer.data.prepare", description="Text to Megatron's .bin/.idx.", allow_abbrev=False
    )
    result.add_argument("input", help="JSON-lines (also gzipped), or a folder with one document per file")
    result.add_argument("--output-prefix", required=True, help="files are named PREFIX_KEY_document.*")
    result.add_argument("--tokenizer", help="tokenizer.json, a folder with it, or with vocab.json and merges.txt")
    result.add_argument(
        "--vocab-size", type=int, help=f"train a byte-level BPE of this size [default: {DEFAULT_VOCAB_SIZE:,}]"
    )
    result.add_argument("--json-key", default="text")
    result.add_argument(
        "--append-eod", action=argparse.BooleanOptionalAction, default=True, help="end each document with its own token"
    )
    result.add_argument(
        "--include", action="append", default=[], metavar="GLOB", help="of a folder, only files like this"
    )
    result.add_argument(
        "--exclude", action="append", default=[], metavar="GLOB", help="of a folder, no files or folders like this"
    )
    result.add_argument("--workers", type=int, help="encoding threads [default: one per core, at most 16]")
    result.add_argument("--overwrite", action="store_true", help="replace files that are there")
    result.add_argument("--json", action="store_true", help="print JSON")
    return result


def prepare(arguments: argparse.Namespace) -> tuple[PreparedData, str]:
    """Write everything. Returns what was written, and what was left out in words.

    Raises DataError; then what was there before stands.
    """
    prefix = output_prefix(arguments)
    corpus = open_corpus(Path(arguments.input), arguments.json_key, arguments.include, arguments.exclude)
    refuse_existing(prefix, arguments.overwrite)
    make_folder(prefix.parent)
    if arguments.tokenizer:
        tokenizer, tokenizer_file, tokenizer_text = corpus_tokenizer.given(Path(arguments.tokenizer))
    else:
        wanted = arguments.vocab_size or DEFAULT_VOCAB_SIZE
        tokenizer, tokenizer_file, tokenizer_text = corpus_tokenizer.trained(
            corpus, wanted, prefix.parent, arguments.overwrite
        )
    vocab_size = bpe.vocab_size(tokenizer)
    eod = bpe.end_of_document(tokenizer) if arguments.append_eod else None
    encoder = bpe.Encoder(tokenizer, arguments.workers or min(MOST_WORKERS, os.cpu_count() or 1))
    skipped = Skipped()
    with IndexedWriter(prefix, token_dtype(vocab_size)) as writer:
        totals = _encode(corpus, encoder, eod, vocab_size, writer, skipped)
        if not totals.documents:
            raise DataError(f"no documents in {shown(arguments.input)}: {skipped.words() or 'nothing but blank lines'}")
        data = PreparedData(
            data_path=str(prefix),
            documents=totals.documents,
            tokens=int(totals.counts.sum()),
            text_bytes=totals.text_bytes,
            bytes_per_token=totals.text_bytes / int(totals.counts.sum()),
            vocab_size=vocab_size,
            entropy_nats=entropy_nats(totals.counts),
            ln_vocab_nats=math.log(vocab_size),
            eod=eod,
            dtype=token_dtype(vocab_size).name,
            engine=encoder.engine,
            tokenizer=str(tokenizer_file.resolve()),
            tokenizer_sha256=hashlib.sha256(tokenizer_text.encode()).hexdigest(),
            bin_sha256=totals.digest.hexdigest(),
            skipped=SkippedCounts(skipped.empty, skipped.not_text, skipped.unreadable),
        )

        def neighbours() -> None:
            if not arguments.tokenizer:
                write_atomically(tokenizer_file, tokenizer_text)
            write_notes(prefix, msgspec.convert(data, DataNotes, from_attributes=True))

        writer.place(neighbours)
    return data, skipped.words()


@dataclass
class Totals:
    """What was written. counts: how often each id occurs."""

    counts: NDArray[np.int64]
    documents: int = 0
    text_bytes: int = 0
    digest: Any = field(default_factory=hashlib.sha256)


def _encode(
    corpus: Folder | JsonLines,
    encoder: bpe.Encoder,
    eod: int | None,
    vocab_size: int,
    writer: IndexedWriter,
    skipped: Skipped,
) -> Totals:
    """Everything in `corpus` into `writer`."""
    totals = Totals(np.zeros(vocab_size, np.int64))
    with Progress("encoding", corpus.total_bytes) as progress:
        for batch in _batches(corpus.documents(skipped)):
            encoded = encoder.encode([document.text for document in batch])
            tokens, lengths = _joined(encoded, eod, token_dtype(vocab_size))
            writer.add(tokens, lengths)
            totals.digest.update(tokens.data)
            totals.counts += np.bincount(tokens, minlength=vocab_size)
            totals.documents += len(batch)
            totals.text_bytes += sum(len(document.text.encode()) for document in batch)
            progress.reached(batch[-1].read_bytes)
    return totals


def output_prefix(arguments: argparse.Namespace) -> Path:
    """`PREFIX_KEY_document`, as Megatron names it."""
    return Path(f"{arguments.output_prefix}_{arguments.json_key}_document")


def refuse_existing(prefix: Path, overwrite: bool) -> None:
    """Raises DataError when whole data is there already: a training may be reading it."""
    if idx_path(prefix).exists() and not overwrite:
        raise DataError(
            f"{idx_path(prefix)} is there already; give --overwrite to replace it, or another --output-prefix"
        )


def entropy_nats(counts: NDArray[np.int64]) -> float:
    """-sum p ln p of the tokens' frequencies, in nats: the loss of the best model that ignores context."""
    frequencies = counts[counts > 0] / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum())


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Documents in pieces of about BATCH_CHARACTERS."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _joined(
    encoded: list[NDArray[np.integer]], eod: int | None, dtype: np.dtype[np.integer]
) -> tuple[NDArray[np.integer], NDArray[np.int32]]:
    """All documents' tokens in one array of the stored type, each ended by `eod` when given; how many each has."""
    extra = eod is not None
    lengths = np.fromiter((len(one) + extra for one in encoded), np.int32, len(encoded))
    tokens = np.empty(int(lengths.sum(dtype=np.int64)), dtype)
    for one, end in zip(encoded, itertools.accumulate(lengths.tolist()), strict=True):
        tokens[end - extra - len(one) : end - extra] = one
        if extra:
            tokens[end - 1] = eod
    return tokens, lengths


def usage_error(arguments: argparse.Namespace) -> str:
    """What is wrong with the options by themselves, or an empty string."""
    if arguments.workers is not None and arguments.workers < 1:
        return f"--workers {arguments.workers}: 1 at least"
    if arguments.vocab_size is None:
        return ""
    if arguments.tokenizer:
        return "--tokenizer brings its own vocabulary; leave out --vocab-size"
    if arguments.vocab_size < bpe.SMALLEST_VOCAB:
        return (
            f"--vocab-size {arguments.vocab_size}: {bpe.SMALLEST_VOCAB} at least (256 bytes and the end of a document)"
        )
    return ""


def report(data: PreparedData, left_out: str, asked_vocab_size: int | None) -> str:
    """What a person reads at the end."""
    fewer = asked_vocab_size is not None and data.vocab_size < asked_vocab_size
    shortage = f" ({asked_vocab_size:,} were asked for; the text has no more pairs that repeat)" if fewer else ""
    skipped = f" (left out: {left_out})" if left_out else ""
    rows = [
        ("documents", f"{data.documents:,}{skipped}"),
        ("tokens", f"{data.tokens:,}, {data.bytes_per_token:.2f} bytes each"),
        ("vocabulary", f"{data.vocab_size:,}, ln {data.ln_vocab_nats:.2f} nats{shortage}"),
        ("entropy", f"{data.entropy_nats:.2f} nats a token, knowing only how frequent each is"),
        ("data_path", shown(data.data_path)),
        ("tokenizer", shown(data.tokenizer)),
    ]
    return "\n".join(f"{name:<11} {value}" for name, value in rows)


def main(argv: list[str] | None = None) -> int:
    """0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    arguments = parser().parse_args(argv)
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        return _run(arguments)
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(arguments: argparse.Namespace) -> int:
    wrong = usage_error(arguments)
    if wrong:
        return failed(wrong, 2)
    try:
        data, left_out = prepare(arguments)
    except DataError as error:
        return failed(str(error), 1)
    except OSError as error:
        where = f": {shown(error.filename)}" if error.filename else f" while writing {shown(output_prefix(arguments))}"
        return failed(f"{error.strerror or error}{where}; nothing was left behind", 1)
    except KeyboardInterrupt:
        return failed("interrupted; nothing was left behind", 130)
    if arguments.json:
        sys.stdout.write(json_file_text({"schema_version": 1, "data": data}))
    else:
        print(report(data, left_out, arguments.vocab_size))
    return 0


def _interrupted(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    # Not sys.exit: after an interruption native threads may still run, which Python's own way out would wait for.
    os._exit(exit_code)
