"""`python -m trainer.data.prepare INPUT... --output-prefix P`: convert text to `P_<key>_document.{bin,idx,json}`.

`tokenizer.json` is written next to them. The `.json` holds documents, tokens, vocab_size, entropy_nats (the loss of a
model that knows only the frequencies of tokens), the tokenizer and checksums. Needs neither torch nor a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import math
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.core.console import complain, failed
from trainer.core.files import make_folder, write_atomically
from trainer.data import tokenizer as bpe
from trainer.data.corpus import Corpus
from trainer.data.encoding import Setting, encoding
from trainer.data.program import Progress, tell_step
from trainer.data.texts.inputs import Choice
from trainer.data.texts.piece import shown
from trainer.data.unfinished import VOCAB_SIZE, Asked, Leftovers, State, UnfinishedPair, differences
from trainer.formats.data.index_header import idx_path
from trainer.formats.data.vocabulary_files import (
    DataNotes,
    PreparedData,
    SkippedCounts,
    write_notes,
)
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
    result.add_argument("inputs", nargs="+", metavar="INPUT", help="JSON-lines, Parquet, folders, or patterns of them")
    result.add_argument("--output-prefix", required=True, help="files are named PREFIX_KEY_document.*")
    result.add_argument("--tokenizer", help="tokenizer.json, a folder with it, or with vocab.json and merges.txt")
    result.add_argument(
        "--vocab-size", type=int, help=f"train a byte-level BPE of this size [default: {bpe.DEFAULT_VOCAB_SIZE:,}]"
    )
    result.add_argument("--json-key", default="text", help="the key or the column with the text")
    result.add_argument("--split", metavar="NAME", help="the split of a folder that datasets saved")
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


def prepare(arguments: argparse.Namespace) -> tuple[PreparedData, str]:
    """Write all data, or continue an earlier start of the same preparation.

    Returns the data and a text of what was skipped. Raises DataError; existing data is then unchanged.
    """
    prefix = output_prefix(arguments)
    leftovers = Leftovers(prefix)
    written = leftovers.written()
    if not arguments.tokenizer:
        written.append(bpe.place_in(prefix.parent))
    own = frozenset(str(prefix.parent.resolve() / path.name) for path in written)
    corpus = Corpus(
        arguments.inputs, Choice(arguments.json_key, arguments.include, arguments.exclude, arguments.split, own)
    )
    if not leftovers.state.exists():
        refuse_existing(prefix, arguments.overwrite)
    make_folder(prefix.parent)
    with UnfinishedPair(leftovers, lambda: tell_step(arguments.steps_to)) as pair:
        # Clean up after a preparation that was killed after its renames. Another one may have finished meanwhile.
        refuse_existing(prefix, arguments.overwrite)
        given = _given(arguments.tokenizer) if arguments.tokenizer else None
        asked = Asked(_options(arguments, given), corpus.identities())
        kept = _kept(leftovers, asked, arguments.overwrite)
        chosen = given or _trained(arguments, corpus, leftovers, kept)
        try:
            _go_on(pair, kept, asked, chosen)
        except DataError:
            if kept is None or not arguments.overwrite:
                raise
            leftovers.remove()
            kept = None
            _go_on(pair, kept, asked, chosen)
        if chosen.is_trained and kept is None:
            write_atomically(leftovers.tokenizer, chosen.text)
            pair.save()
        data = _encode(arguments, corpus, chosen, pair)

        def neighbours() -> None:
            if chosen.is_trained:
                write_atomically(chosen.file, chosen.text)
            write_notes(prefix, msgspec.convert(data, DataNotes, from_attributes=True))

        pair.finish(neighbours)
    return data, pair.state.skipped.words()


def _options(arguments: argparse.Namespace, given: Chosen | None) -> dict[str, str]:
    """Return the settings that decide, besides the input, which bytes are written."""
    of_tokenizer = {VOCAB_SIZE: f"{_vocab_size(arguments):,}"} if given is None else {"--tokenizer": given.sha256[:12]}
    return {"--json-key": shown(arguments.json_key), "--append-eod": str(arguments.append_eod), **of_tokenizer}


def _vocab_size(arguments: argparse.Namespace) -> int:
    return int(arguments.vocab_size or bpe.DEFAULT_VOCAB_SIZE)


def _given(file: str) -> Chosen:
    tokenizer = bpe.load(Path(file))
    return Chosen(tokenizer, tokenizer.to_str(pretty=True), Path(file), is_trained=False)


def _trained(arguments: argparse.Namespace, corpus: Corpus, leftovers: Leftovers, kept: State | None) -> Chosen:
    """Return the tokenizer that an earlier start has trained, or train one."""
    text = leftovers.read_tokenizer(kept) if kept is not None else None
    if text is not None:
        tokenizer = Tokenizer.from_str(text)
    else:
        tokenizer = bpe.train_on(corpus, _vocab_size(arguments))
        text = tokenizer.to_str(pretty=True)
    file = bpe.place_in(leftovers.prefix.parent)
    bpe.refuse_other_tokenizer(file, text, arguments.overwrite)
    return Chosen(tokenizer, text, file, is_trained=True)


def _kept(leftovers: Leftovers, asked: Asked, overwrite: bool) -> State | None:
    """Return the state of an earlier start; None without one, or if it is to be replaced.

    Raises DataError if it belongs to another preparation.
    """
    try:
        state = leftovers.read_state()
        why = differences(state.asked, asked, state.behind) if state else ""
        if why:
            raise DataError(
                f"{shown(leftovers.tokens)} belongs to another preparation: {why}; --overwrite starts again"
            )
    except DataError:
        if not overwrite:
            raise
        state = None
    if state is None:
        leftovers.remove()
    return state


def _go_on(pair: UnfinishedPair, kept: State | None, asked: Asked, chosen: Chosen) -> None:
    """Continue from `kept`, or start if it is None. Raises DataError if the kept data is not as recorded."""
    if kept is not None and kept.tokenizer_sha256 != chosen.sha256:
        raise DataError(f"{shown(pair.prefix)} was started with another tokenizer; --overwrite starts again")
    state = kept or State(asked, chosen.sha256)
    pair.go_on(msgspec.structs.replace(state, asked=asked), bpe.vocab_size(chosen.tokenizer))


def _encode(arguments: argparse.Namespace, corpus: Corpus, chosen: Chosen, pair: UnfinishedPair) -> PreparedData:
    """Encode the rest of `corpus` into `pair`. Returns the pair's facts."""
    eod = bpe.end_of_document(chosen.tokenizer) if arguments.append_eod else None
    setting, start = Setting(chosen.text, eod, pair.dtype.str), pair.state
    if start.documents:
        complain(f"{start.documents:,} documents were written before; continuing after them")
    try:
        with (
            Progress("encoding", corpus.total_bytes, start.read_bytes) as progress,
            contextlib.closing(corpus.pieces(start.behind)) as pieces,
            encoding(setting, _processes(arguments.workers, corpus.total_bytes - start.read_bytes)) as engine,
        ):
            for placed, piece in engine.encoded(pieces):
                pair.append(placed, piece)
                progress.reached(placed.read_bytes)
    except DataError as error:
        if not pair.state.documents:
            raise
        pair.save()
        raise DataError(f"{error}; {pair.words(str(error))}") from None
    state = pair.state
    changed = corpus.changed()
    if changed:
        pair.discard()
        raise DataError(f"{changed} changed while it was read, so nothing was kept; start again when it is complete")
    if not state.tokens:
        pair.discard()
        what = f"{state.documents:,} documents have no tokens" if state.documents else "nothing but blank lines"
        raise DataError(f"no documents in {corpus.name}: {state.skipped.words() or what}")
    vocab_size = bpe.vocab_size(chosen.tokenizer)
    return PreparedData(
        data_path=pair.prefix,
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
        skipped=SkippedCounts(state.skipped.empty, state.skipped.not_text, state.skipped.unreadable),
    )


def _processes(asked: int | None, left_bytes: int) -> int:
    """Return the number of encoding processes: the requested one, or one per usable core with enough to do."""
    cores = min(MOST_WORKERS, len(os.sched_getaffinity(0)))
    return asked or max(1, min(cores, left_bytes // BYTES_WORTH_A_PROCESS))


def output_prefix(arguments: argparse.Namespace) -> Path:
    """Return `PREFIX_KEY_document`, Megatron's name."""
    return Path(f"{arguments.output_prefix}_{arguments.json_key}_document")


def refuse_existing(prefix: Path, overwrite: bool) -> None:
    """Raise DataError if complete data exists: a training may be reading it."""
    if idx_path(prefix).exists() and not overwrite:
        raise DataError(
            f"{idx_path(prefix)} exists already; give --overwrite to replace it, or another --output-prefix"
        )


def entropy_nats(counts: NDArray[np.int64]) -> float:
    """Return -sum p ln p of the tokens' frequencies, in nats: the loss of the best model without context."""
    frequencies = counts[counts > 0] / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum())


def usage_error(arguments: argparse.Namespace) -> str:
    """Return an error in the options alone; empty without one."""
    if arguments.workers is not None and arguments.workers < 1:
        return f"--workers {arguments.workers}: must be at least 1"
    if arguments.vocab_size is None:
        return ""
    if arguments.tokenizer:
        return "--tokenizer has its own vocabulary; leave out --vocab-size"
    if arguments.vocab_size < bpe.SMALLEST_VOCAB:
        return (
            f"--vocab-size {arguments.vocab_size}: at least {bpe.SMALLEST_VOCAB} (256 bytes and the end of a document)"
        )
    return ""


def report(data: PreparedData, left_out: str, asked_vocab_size: int | None) -> str:
    """Return the report for people."""
    fewer = asked_vocab_size is not None and data.vocab_size < asked_vocab_size
    shortage = f" ({asked_vocab_size:,} were requested; the text has no more repeated pairs)" if fewer else ""
    skipped = f" (skipped: {left_out})" if left_out else ""
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
    """Return 0 on success, 1 after a failure, 2 for wrong usage, 130 if interrupted."""
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
        return failed(f"{error.strerror or error}{where}; {_left(arguments)}", 1)
    except KeyboardInterrupt:
        return failed(f"interrupted; {_left(arguments)}", 130)
    if arguments.json:
        sys.stdout.write(printed_json_text("data", data))
    else:
        print(report(data, left_out, arguments.vocab_size))
    return 0


def _left(arguments: argparse.Namespace) -> str:
    return Leftovers(output_prefix(arguments)).words()


def _interrupted(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    # Not sys.exit: after an interruption native threads may still run, and Python's normal exit would wait for them.
    os._exit(exit_code)
