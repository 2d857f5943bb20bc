"""Compare the sample index with megatron-core's on the same file; open 2,000 files; gather a batch.

The index is of 20 M documents for 2 epochs: its shuffle, which is most of it, moves 160 MB at random. Both build what
the file's mapped lengths say, in turns: documents shuffled, samples found, samples shuffled; ours also checks every
length and offset. What comes out has to be equal. Nothing is written to the disk by either.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data import compiled
from trainer.data.build import build_datasets
from trainer.data.gpt_dataset import OrderedTokens, gather
from trainer.data.indexed import IndexedTokens, index_bytes
from trainer.data.indices import SampleOrder, build_order
from trainer.recipe.lengths import plan_epochs

DOCUMENTS, EPOCHS, SEQUENCE_LENGTH, SEED = 20_000_000, 2, 2048, 1234
BUILD_GOAL, ROUNDS = 4.0, 2
FILES, OPEN_GOAL_S = 2000, 1.0
BATCH, BATCHES = 8, 200
_LENGTHS = (20, 800)


def main() -> dict[str, Any]:
    """Measure, print and return: build, opening by 1 and by 4 ranks, gathering."""
    engine = "numpy" if compiled.library() is None else "C++"
    print(f"the data path is computed by {engine}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = _large_pair(folder / "large")
        return {"engine": engine, "build": _build(data), "opening": _opening(folder), "gathering": _gathering(folder)}


def _large_pair(prefix: Path) -> IndexedTokens:
    """Its documents have lengths; what they hold is a hole in the file, zeros."""
    lengths = np.random.default_rng(0).integers(*_LENGTHS, DOCUMENTS).astype(np.int32)
    with Path(f"{prefix}.idx").open("wb") as file:
        file.writelines(index_bytes(lengths, np.dtype("<u2")))
    with Path(f"{prefix}.bin").open("wb") as file:
        file.truncate(2 * int(lengths.sum(dtype=np.int64)))
    return IndexedTokens(prefix)


def _build(data: IndexedTokens) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    theirs = _megatrons()
    for _ in range(ROUNDS):
        ours = _timed(lambda: _our_order(data, EPOCHS), seconds["ours"])
        found = _timed(lambda: theirs(data), seconds["theirs"])
        pairs = zip((ours.document_index, ours.sample_index, ours.shuffle_index), found, strict=True)
        assert all(one.dtype == other.dtype and np.array_equal(one, other) for one, other in pairs)
    our_s, their_s = min(seconds["ours"]), min(seconds["theirs"])
    print(f"index of {DOCUMENTS:,} documents x {EPOCHS}, {len(ours.shuffle_index):,} samples: {our_s:.2f} s")
    print(f"megatron-core, equal output: {their_s:.2f} s")
    print(f"ratio {their_s / our_s:.2f} (goal >= {BUILD_GOAL})")
    return {"ours_s": seconds["ours"], "megatron_s": seconds["theirs"], "ratio": their_s / our_s}


def _our_order(data: IndexedTokens, epochs: int) -> SampleOrder:
    data.check_every_entry()
    tokens = data.tokens_of(0, len(data))
    plan = plan_epochs(tokens, SEQUENCE_LENGTH, (epochs * tokens - 1) // SEQUENCE_LENGTH)
    assert plan.epochs == epochs
    return build_order(0, len(data), data.lengths, plan, SEQUENCE_LENGTH, SEED)


def _megatrons() -> Callable[[IndexedTokens], tuple[Any, Any, Any]]:
    """The functions that its GPTDataset calls one after the other, on its own copy of the lengths as there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import gpt_dataset, helpers

    def build(data: IndexedTokens) -> tuple[Any, Any, Any]:
        tokens = int(np.sum(data.lengths))
        random = np.random.RandomState(SEED)
        documents = np.arange(len(data), dtype=np.int32)
        document_index = gpt_dataset._build_document_index(documents, EPOCHS, random, False)
        sample_index = helpers.build_sample_idx(
            data.lengths.copy(), document_index, SEQUENCE_LENGTH, EPOCHS, tokens, True, 1
        )
        samples = len(sample_index) - 1
        return document_index, sample_index, gpt_dataset._build_shuffle_index(samples, samples, random)

    return build


def _opening(folder: Path) -> dict[str, Any]:
    words = _small_pairs(folder / "small")
    options: dict[str, Any] = {
        **{"seq_length": 128, "seed": SEED, "separate_last_epoch_threshold": 0.8, "split": "90,5,5"},
        "data_path": words,
    }
    first: list[float] = []
    _timed(lambda: build_datasets(options, 400_000, 20_000, 20_000), first)
    print(f"{FILES:,} files, three splits: the first time {first[0]:.2f} s")
    found: dict[str, Any] = {"first_s": first[0]}
    for ranks in (1, 4):
        taken = statistics.median(_open_by(ranks, options) for _ in range(3))
        found[f"ranks_{ranks}_s"] = taken
        print(f"again, {ranks} ranks at once: {taken:.2f} s (goal <= {OPEN_GOAL_S})")
    return found


def _small_pairs(folder: Path) -> list[str]:
    """A blend of FILES pairs of 120 documents, as words of --data-path."""
    folder.mkdir()
    random = np.random.default_rng(0)
    words = []
    for number in range(FILES):
        lengths = random.integers(50, 300, 120).astype(np.int32)
        prefix = folder / f"set{number:04}"
        Path(f"{prefix}.bin").write_bytes(random.integers(0, 9000, int(lengths.sum())).astype("<u2").tobytes())
        Path(f"{prefix}.idx").write_bytes(b"".join(index_bytes(lengths, np.dtype("<u2"))))
        words += [str(1 + number % 7), str(prefix)]
    return words


def _open_by(ranks: int, options: dict[str, Any]) -> float:
    """Seconds until the slowest of so many processes has all its datasets and has read a sample."""
    context = multiprocessing.get_context("fork")
    barrier, taken = context.Barrier(ranks), context.Queue()
    processes = [context.Process(target=_rank, args=(options, number, barrier, taken)) for number in range(ranks)]
    for process in processes:
        process.start()
    slowest = max(taken.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(60)
    return float(slowest)


def _rank(options: dict[str, Any], number: int, barrier: Barrier, taken: Queue[float]) -> None:
    def wait() -> None:
        barrier.wait(60)

    wait()
    started = time.perf_counter()
    train = build_datasets(options, 400_000, 20_000, 20_000, number == 0, wait).train
    assert train is not None
    train[number]
    taken.put(time.perf_counter() - started)


def _gathering(folder: Path) -> dict[str, Any]:
    """By the compiled library and by numpy, the same batches out of memory; both know the largest token then."""
    random = np.random.default_rng(0)
    lengths = random.integers(*_LENGTHS, 10_000).astype(np.int32)
    prefix = folder / "warm"
    Path(f"{prefix}.bin").write_bytes(random.integers(0, 50_000, int(lengths.sum())).astype("<u2").tobytes())
    Path(f"{prefix}.idx").write_bytes(b"".join(index_bytes(lengths, np.dtype("<u2"))))
    data = IndexedTokens(prefix)
    source = OrderedTokens(data, _our_order(data, 1))
    rows = np.empty((BATCH, SEQUENCE_LENGTH + 1), np.int64)

    def read() -> None:
        for batch in range(BATCHES):
            gather([source] * BATCH, range(batch * BATCH, (batch + 1) * BATCH), rows)

    usual, tokens = compiled.library, BATCHES * rows.size
    rates: dict[str, float] = {}
    for name, library in (("warm-up", usual), ("library", usual), ("numpy", lambda: None)):
        seconds: list[float] = []
        compiled.library = library  # type: ignore[assignment]
        try:
            for _ in range(1 if name == "warm-up" else 3):
                _timed(read, seconds)
        finally:
            compiled.library = usual
        rates[name] = tokens / min(seconds)
    ratio = rates["library"] / rates["numpy"]
    print(f"gathering {BATCH} x {SEQUENCE_LENGTH + 1} tokens: {rates['library'] / 1e6:,.0f} M tokens/s")
    print(f"by numpy: {rates['numpy'] / 1e6:,.0f} M tokens/s; ratio {ratio:.2f}")
    return {"tokens_per_s": rates["library"], "numpy_tokens_per_s": rates["numpy"], "ratio": ratio}


def _timed(act: Callable[[], Any], seconds: list[float]) -> Any:
    started = time.perf_counter()
    found = act()
    seconds.append(time.perf_counter() - started)
    return found


if __name__ == "__main__":
    main()
