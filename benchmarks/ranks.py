"""Two ranks of one thread each beside one process of two threads: what splitting a model costs on one machine.

The shape is that of `trainer_throughput`, with learned positions. Tensor and data parallelism take its batch as one
global batch, two pipeline stages eight micro-batches of half of it; each is held against one process with the same
micro-batches.
All processes are alive together, wait without spinning, and take turns step by step; ratios are medians over the turns.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import trainer_throughput as bench_shape

MICRO_BATCHES, SMALL = 8, 4  # so many micro-batches of so many samples for two stages
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Candidate:
    """One way to train: how many ranks, what splits them, how the global batch is cut."""

    name: str
    ranks: int
    split: dict[str, int]
    micro_batch: int
    micro_batches: int
    goal: float | None = None
    against: str = ""

    @property
    def samples(self) -> int:
        """In a global batch."""
        replicas = self.ranks // (self.split.get("tensor", 1) * self.split.get("pipeline", 1))
        return self.micro_batch * self.micro_batches * replicas


BATCH = bench_shape.BATCH
ONE, ONE_IN_PARTS = "one process, two threads", f"the same, {MICRO_BATCHES} micro-batches"
CANDIDATES = (
    Candidate(ONE, 1, {}, BATCH, 1),
    Candidate("TP2", 2, {"tensor": 2}, BATCH, 1, 0.88, ONE),
    Candidate("DP2", 2, {}, BATCH // 2, 1, 0.95, ONE),
    Candidate(ONE_IN_PARTS, 1, {}, SMALL, MICRO_BATCHES),
    Candidate(f"PP2, {MICRO_BATCHES} micro-batches", 2, {"pipeline": 2}, SMALL, MICRO_BATCHES, 0.82, ONE_IN_PARTS),
)


def main(rounds: int = 12) -> dict[str, Any]:
    """Measure, print a table and return the ratios of tokens/s by candidate."""
    os.environ["OMP_NUM_THREADS"] = "1"  # each candidate sets its own
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    from trainer.core.preload import import_engine, set_process_defaults

    set_process_defaults(2)
    import_engine(("trainer.engine.build",))
    teams = {one.name: _Team(one) for one in CANDIDATES}
    seconds: dict[str, list[float]] = {name: [] for name in teams}
    try:
        for number in range(rounds + 2):
            for name, team in teams.items():
                taken = team.step_s()
                if number >= 2:
                    seconds[name].append(taken)
    finally:
        for team in teams.values():
            team.close()
    return _report(seconds)


def _report(seconds: dict[str, list[float]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in CANDIDATES:
        rate = one.samples * bench_shape.SEQUENCE / statistics.median(seconds[one.name])
        print(f"{one.name:36} {rate:10.0f} tokens/s")
        if one.goal is None:
            continue
        pairs = zip(seconds[one.against], seconds[one.name], strict=True)
        ratio = statistics.median(theirs / own for theirs, own in pairs)
        fastest = min(seconds[one.against]) / min(seconds[one.name])
        print(f"{one.name:36} {ratio:9.2f}x of {one.against} (goal {one.goal:.2f}x; fastest steps {fastest:.2f}x)")
        found[one.name] = {"ratio": ratio, "goal": one.goal, "ratio_of_fastest": fastest, "tokens_per_second": rate}
    return found


class _Team:
    """The ranks of one candidate, forked from here, each taking a step when told."""

    def __init__(self, candidate: Candidate) -> None:
        import multiprocessing

        from tests.free_port import free_port

        context, port = multiprocessing.get_context("fork"), free_port()
        self._ends, self._processes = [], []
        for rank in range(candidate.ranks):
            here, there = context.Pipe()
            process = context.Process(target=_rank, args=(candidate, rank, port, there), daemon=True)
            process.start()
            there.close()
            self._ends.append(here)
            self._processes.append(process)
        self._answers()

    def step_s(self) -> float:
        """Seconds of one step, from telling the ranks until the last is done."""
        started = time.perf_counter()
        for end in self._ends:
            end.send(True)
        self._answers()
        return time.perf_counter() - started

    def _answers(self) -> None:
        for end in self._ends:
            if not end.poll(TIMEOUT_S):
                raise RuntimeError("a rank did not answer")
            end.recv()

    def close(self) -> None:
        """Let the ranks go; what does not go is ended."""
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()


def _rank(candidate: Candidate, rank: int, port: int, orders: Connection) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(candidate.ranks), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    import torch

    from trainer.engine.build import Vocabulary, build_engine, initialize, train_step

    torch.set_num_threads(bench_shape.THREADS // candidate.ranks)
    options = bench_shape.options(
        candidate.ranks,
        micro_batch_size=candidate.micro_batch,
        global_batch_size=candidate.samples,
        **{f"{how}_model_parallel_size": size for how, size in candidate.split.items()},
    )
    parallel = initialize(options)
    engine = build_engine(options, parallel, Vocabulary.unpadded(bench_shape.VOCABULARY))
    items = _items(candidate.micro_batch)
    orders.send(True)
    try:
        while orders.recv():
            train_step(engine, items, bench_shape.LEARNING_RATE)
            orders.send(True)
    except EOFError:
        os._exit(0)  # the others of this team go too: no one waits for anyone


def _items(micro_batch: int) -> Iterator[Any]:
    from trainer.model.pipeline import engine_item

    for samples in bench_shape.batches(micro_batch):
        yield engine_item(samples)


if __name__ == "__main__":
    main()
