"""Measure the time of a training step until its data is there: reading, checking and handing over.

The shape is that of `trainer_throughput`, its samples those of a data set on the disk. By default a sample is read when
it is asked for, so this is all that reading costs; with a thread that reads ahead it is what a step still waits. Both
take turns step by step over one engine.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import trainer_throughput as bench_shape

GOAL = 0.01
DOCUMENTS, TOKENS_PER_DOCUMENT = 2000, 1000


def main(rounds: int = 12) -> dict[str, Any]:
    """Measure, print the share of a step for each number of threads, and return them."""
    os.environ.setdefault("OMP_NUM_THREADS", str(bench_shape.THREADS))
    from trainer.core.preload import import_engine

    import_engine(("trainer.engine.build",))
    import torch

    from trainer.engine.build import Vocabulary, build_engine, initialize, train_step

    torch.set_num_threads(bench_shape.THREADS)
    with tempfile.TemporaryDirectory() as folder:
        given = {"data_path": [_write_corpus(Path(folder))], "split": "100,0,0"}
        both = [bench_shape.options(1, **given, num_workers=threads) for threads in (0, 1)]
        parallel = initialize(both[0])
        engine = build_engine(both[0], parallel, Vocabulary.unpadded(bench_shape.VOCABULARY))
        readers = {one.num_workers: _Timed(_items(one, parallel)) for one in both}
        steps: dict[int, list[tuple[float, float]]] = {threads: [] for threads in readers}
        for number in range(rounds + 2):
            for threads, items in readers.items():
                items.taken_s, started = 0.0, time.perf_counter()
                train_step(engine, items, bench_shape.LEARNING_RATE)
                if number >= 2:
                    steps[threads].append((items.taken_s, time.perf_counter() - started))
        for items in readers.values():
            items.source.close()
    return _report(steps)


def _report(steps: dict[int, list[tuple[float, float]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for threads, measured in steps.items():
        share = statistics.median(reading_s / step_s for reading_s, step_s in measured)
        reading_s, step_s = (statistics.median(column) for column in zip(*measured, strict=True))
        times = f"{reading_s * 1e6:.0f} us of a step of {step_s:.3f} s"
        print(f"{threads} threads read ahead: {times}, {share:.3%} (goal < {GOAL:.0%})")
        found[f"{threads} threads"] = {"share": share, "goal": GOAL, "reading_s": reading_s, "step_s": step_s}
    return found


class _Timed(Iterator[Any]):
    """The same items, and how long one waited for them."""

    def __init__(self, source: Any) -> None:
        self.source, self.taken_s = source, 0.0

    def __next__(self) -> Any:
        started = time.perf_counter()
        try:
            return next(self.source)
        finally:
            self.taken_s += time.perf_counter() - started


def _items(options: Any, parallel: Any) -> Any:
    from trainer.data.build import build_datasets
    from trainer.loop.batches import open_items

    datasets = build_datasets(options, DOCUMENTS * TOKENS_PER_DOCUMENT // bench_shape.SEQUENCE - 1, 0, 0)
    return open_items(datasets.train, 0, options, parallel, bench_shape.VOCABULARY, None, for_training=True)


def _write_corpus(folder: Path) -> str:
    import numpy

    from trainer.data.indexed import write_pair

    count = DOCUMENTS * TOKENS_PER_DOCUMENT
    tokens = numpy.random.default_rng(0).integers(0, bench_shape.VOCABULARY, count).astype("uint16")
    write_pair(folder / "corpus", tokens, numpy.full(DOCUMENTS, TOKENS_PER_DOCUMENT, "int32"))
    return str(folder / "corpus")


if __name__ == "__main__":
    main()
