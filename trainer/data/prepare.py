"""`python -m trainer.data.prepare INPUT... --output-prefix P`: convert text to `P_<key>_document.{bin,idx,json}`.

`tokenizer.json` is written next to them. The `.json` holds documents, tokens, vocab_size, entropy_nats (the loss of a
model that knows only the frequencies of tokens), the tokenizer and checksums. Needs neither torch nor a GPU.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.core.console import complain, failed
from trainer.core.files import make_folder, write_atomically
from trainer.data import tokenizer as bpe
from trainer.data.corpus import Choice, Corpus
from trainer.data.encoding import PieceEncoder, encoded
from trainer.data.pieces import shown
from trainer.data.program import Progress, report_step, run_program
from trainer.data.unfinished import VOCAB_SIZE, State, UnfinishedPair
from trainer.formats.data.index_header import idx_path
from trainer.formats.data.vocabulary_files import DataNotes, PreparedData, SkippedCounts, write_notes
from trainer.formats.errors import DataError
from trainer.formats.json_text import printed_json_text

#: Encoding so many bytes takes about as long as starting a process.
BYTES_WORTH_A_PROCESS = 16 << 20
MOST_WORKERS = 64


def parser() -> argparse.ArgumentParser:
    """Return the command's options; `opsctl data prepare` has the same."""
    result = argparse.ArgumentParser(
        "python -m trainer.data.prepare", description="Convert text to Megatron's .bin/.idx.", allow_abbrev=False
    )
    result.add_argument("inputs", nargs="+", metavar="INPUT", help="JSON-lines, Parquet, or folders")
    result.add_argument("--output-prefix", required=True, help="files are named PREFIX_KEY_document.*")
    result.add_argument("--tokenizer", help="tokenizer.json, a folder with it, or with vocab.json and merges.txt")
    result.add_argument(
        "--vocab-size", type=int, help=f"train a byte-level BPE of this size [default: {bpe.DEFAULT_VOCAB_SIZE:,}]"
    )
    result.add_argument("--json-key", default="text", help="the key or the column with the text")
    result.add_argument(
        "--append-eod", action=argparse.BooleanOptionalAction, default=True, help="end each document with its own token"
    )
    result.add_argument(
        "--include", action="append", default=[], metavar="GLOB", help="read only files like this, of a folder"
    )
    result.add_argument(
        "--exclude", action="append", default=[], metavar="GLOB", help="skip files and folders like this, of a folder"
    )
    result.add_argument("--workers", type=int, help="encoding processes [default: one per core]")
    result.add_argument("--overwrite", action="store_true", help="replace existing files")
    result.add_argument("--json", action="store_true", help="print JSON")
    result.add_argument(
        "--steps-to", type=int, metavar="FD", help="write a byte to this descriptor each time more is synced to disk"
    )
    return result


@dataclass(frozen=True)
class Chosen:
    """The tokenizer, its text, and its present or future file."""

    tokenizer: Tokenizer
    text: str
    file: Path
    is_trained: bool

    @property
    def sha256(self) -> str:
        """The SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def prepare(arguments: argparse.Namespace) -> PreparedData:
    """Write all data, or continue an earlier start of the same preparation.

    Raises DataError; existing data is then unchanged.
    """
    prefix = output_prefix(arguments)
    corpus = Corpus(arguments.inputs, Choice(arguments.json_key, arguments.include, arguments.exclude, prefix))
    make_folder(prefix.parent)
    with UnfinishedPair(prefix, lambda: report_step(arguments.steps_to)) as pair:
        if idx_path(prefix).exists() and not arguments.overwrite:  # a training may be reading it
            raise DataError(
                f"{shown(idx_path(prefix))} exists already; give --overwrite to replace it, or another --output-prefix"
            )
        chosen = _begin(arguments, corpus, pair)
        data = _encode(arguments, corpus, chosen, pair)

        def neighbours() -> None:
            if chosen.is_trained:
                write_atomically(chosen.file, chosen.text)
            write_notes(prefix, msgspec.convert(data, DataNotes, from_attributes=True))

        pair.place(neighbours)
    return data


def _begin(arguments: argparse.Namespace, corpus: Corpus, pair: UnfinishedPair) -> Chosen:
    """Continue an earlier start, or start; return the tokenizer.

    Raises DataError if an earlier start is of another preparation, or not as recorded, without --overwrite.
    """
    given = _chosen(bpe.load(Path(arguments.tokenizer)), Path(arguments.tokenizer)) if arguments.tokenizer else None
    options = {
        "--json-key": arguments.json_key,
        "--append-eod": str(arguments.append_eod),
        **({"--tokenizer": given.sha256[:12]} if given else {VOCAB_SIZE: str(arguments.vocab_size)}),
    }
    sources = [source.identity() for source in corpus.sources]
    trained_file = pair.prefix.parent / "tokenizer.json"
    try:
        state = pair.kept()
        if state is not None:
            state.refuse_other(options, sources, pair.prefix)
            chosen = given or _chosen(Tokenizer.from_str(pair.kept_tokenizer(state)), trained_file, is_trained=True)
            pair.begin(msgspec.structs.replace(state, sources=sources), bpe.vocab_size(chosen.tokenizer))
            return chosen
    except DataError:
        if not arguments.overwrite:
            raise
    chosen = given or _chosen(bpe.train_on(corpus, arguments.vocab_size), trained_file, is_trained=True)
    if chosen.is_trained and not arguments.overwrite:
        _refuse_other_tokenizer(chosen)
    pair.start_again(State(options, sources, chosen.sha256), bpe.vocab_size(chosen.tokenizer))
    if chosen.is_trained:
        write_atomically(pair.tokenizer, chosen.text)
        pair.save()
    return chosen


def _chosen(tokenizer: Tokenizer, file: Path, is_trained: bool = False) -> Chosen:
    return Chosen(tokenizer, tokenizer.to_str(pretty=True), file, is_trained)


def _refuse_other_tokenizer(chosen: Chosen) -> None:
    """Raise DataError if another tokenizer is stored in its place: the data next to it needs it."""
    file = chosen.file
    if file.exists() and file.read_text(encoding="utf-8") != chosen.text:
        raise DataError(f"{file} exists already and differs; use it with --tokenizer {file}, or choose another folder")


def _encode(arguments: argparse.Namespace, corpus: Corpus, chosen: Chosen, pair: UnfinishedPair) -> PreparedData:
    """Encode the rest of `corpus` into `pair`. Returns the pair's facts."""
    eod = bpe.end_of_document(chosen.tokenizer) if arguments.append_eod else None
    start = pair.state
    if start.documents:
        complain(f"{start.documents:,} documents were written before; continuing after them")
    # One process per usable core with enough to do.
    cores = min(MOST_WORKERS, len(os.sched_getaffinity(0)))
    processes = max(1, min(cores, (corpus.total_bytes - start.read_bytes) // BYTES_WORTH_A_PROCESS))
    encoder = PieceEncoder(chosen.text, eod, pair.dtype.str)
    try:
        with Progress("encoding", corpus.total_bytes, start.read_bytes) as progress:
            done = encoded(encoder, corpus.pieces(start.behind), arguments.workers or processes)
            for placed, piece in done:
                pair.append(placed, piece)
                progress.reached(placed.read_bytes)
    except DataError as error:
        if pair.state.documents:
            pair.save()
            raise DataError(f"{error}; {pair.kept_text()}") from None
        raise
    state = pair.state
    if changed := corpus.changed():
        pair.discard()
        raise DataError(f"{changed} changed while it was read, so nothing was kept; start again when it is complete")
    if not state.tokens:
        pair.discard()
        what = f"{state.documents:,} documents have no tokens" if state.documents else "nothing but blank lines"
        raise DataError(f"no documents in {corpus.name}: {_skipped_text(state.skipped) or what}")
    vocab_size = bpe.vocab_size(chosen.tokenizer)
    return PreparedData(
        data_path=str(pair.prefix),
        documents=state.documents,
        tokens=state.tokens,
        text_bytes=state.text_bytes,
        bytes_per_token=state.text_bytes / state.tokens,
        vocab_size=vocab_size,
        entropy_nats=entropy_nats(pair.counts),
        ln_vocab_nats=math.log(vocab_size),
        eod=eod,
        dtype=pair.dtype.name,
        engine=state.engine,
        tokenizer=str(chosen.file.resolve()),
        tokenizer_sha256=chosen.sha256,
        bin_sha256=state.tokens_sha256,
        skipped=SkippedCounts(*(state.skipped.get(reason, 0) for reason in SkippedCounts.__struct_fields__)),
    )


def _skipped_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in counts.items() if count)


def output_prefix(arguments: argparse.Namespace) -> Path:
    """Return `PREFIX_KEY_document`, Megatron's name."""
    return Path(f"{arguments.output_prefix}_{arguments.json_key}_document")


def entropy_nats(counts: NDArray[np.int64]) -> float:
    """Return -sum p ln p of the tokens' frequencies, in nats: the loss of the best model without context."""
    frequencies = counts[counts > 0] / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum())


def usage_error(arguments: argparse.Namespace) -> str:
    """Return an error in the options alone; empty without one."""
    if arguments.workers is not None and arguments.workers < 1:
        return f"--workers {arguments.workers}: must be at least 1"
    if arguments.tokenizer and arguments.vocab_size is not None:
        return "--tokenizer has its own vocabulary; leave out --vocab-size"
    if arguments.vocab_size is not None and arguments.vocab_size < bpe.SMALLEST_VOCAB:
        least = f"at least {bpe.SMALLEST_VOCAB} (256 bytes and the end of a document)"
        return f"--vocab-size {arguments.vocab_size}: {least}"
    return ""


def report(data: PreparedData, asked_vocab_size: int) -> str:
    """Return the report for people."""
    fewer = data.vocab_size < asked_vocab_size
    shortage = f" ({asked_vocab_size:,} were requested; the text has no more repeated pairs)" if fewer else ""
    skipped = _skipped_text(msgspec.structs.asdict(data.skipped))
    rows = [
        ("documents", f"{data.documents:,}{f' (skipped: {skipped})' if skipped else ''}"),
        ("tokens", f"{data.tokens:,}, {data.bytes_per_token:.2f} bytes each"),
        ("vocabulary", f"{data.vocab_size:,}, ln {data.ln_vocab_nats:.2f} nats{shortage}"),
        ("entropy", f"{data.entropy_nats:.2f} nats a token, knowing only how frequent each is"),
        ("data_path", shown(data.data_path)),
        ("tokenizer", shown(data.tokenizer)),
    ]
    return "\n".join(f"{name:<11} {value}" for name, value in rows)


def main(argv: list[str] | None = None) -> int:
    """Return 0 on success, 1 after a failure, 2 for wrong usage, 130 if interrupted."""
    arguments = parser().parse_args(argv)
    if wrong := usage_error(arguments):
        return failed(wrong, 2)
    asked_vocab_size = arguments.vocab_size or 0
    arguments.vocab_size = arguments.vocab_size or bpe.DEFAULT_VOCAB_SIZE

    def work() -> None:
        try:
            data = prepare(arguments)
        except OSError as error:  # errors of writing do not name the file
            raise OSError(error.errno, error.strerror, error.filename or str(output_prefix(arguments))) from error
        if arguments.json:
            sys.stdout.write(printed_json_text("data", data))
        else:
            print(report(data, asked_vocab_size))

    return run_program(work, lambda: UnfinishedPair(output_prefix(arguments)).kept_text(), data_error=1)


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    # Not sys.exit: after an interruption native threads may still run, and Python's normal exit would wait for them.
    os._exit(exit_code)
