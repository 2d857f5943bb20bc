"""Iterations that are skipped on request: which data the others train on, what is on record, and going on after a stop.

That the same tokens come at each step with and without skipping is looked up in what --log-tokens prints.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import Seen, run_training, write_corpus
from trainer.formats.checkpoint.manifest import Manifest, read_manifest
from trainer.formats.logs.training_line import TrainingLine, parse_training_line

pytestmark = pytest.mark.distributed

_TOKENS = re.compile(r"tokens of iteration (\d+), (sample \d+: .*)")
#: The batch grows from 4 to 8 samples at the fourth step; 2 to 4 are skipped, and 7, out of order.
LENGTH = {"train_samples": 60, "rampup_batch_size": [4, 4, 12], "micro_batch_size": 1, "log_tokens": "1:9"}
SKIPPED = {"train_range_to_skip": [7, 7, 2, 4], "hidden_dropout": 0.1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def train(pool: Pool, ranks: int, corpus: str, **options: Any) -> list[Seen]:
    seen: list[Seen] = pool.run(ranks, run_training, {"data_path": [corpus], **LENGTH, **options})
    assert [rank.status for rank in seen] == [0] * ranks, [rank.errors for rank in seen]
    return seen


def tokens_in(seen: list[Seen]) -> dict[int, list[str]]:
    """Return iteration -> its samples' lines, from any rank."""
    found: dict[int, list[str]] = defaultdict(list)
    for rank in seen:
        for iteration, sample in _TOKENS.findall(rank.output):
            found[int(iteration)].append(sample)
    return {iteration: sorted(samples) for iteration, samples in sorted(found.items())}


def lines_in(seen: list[Seen]) -> dict[int, TrainingLine]:
    parsed = [parse_training_line(line) for rank in seen for line in rank.output.splitlines()]
    return {line.iteration: line for line in parsed if line is not None}


def at(folder: Path, iteration: int) -> Manifest:
    return read_manifest(folder / f"global_step{iteration}")


def test_the_same_tokens_come_at_each_step_with_and_without_skipping(pool: Pool, corpus: str, tmp_path: Path) -> None:
    """On two replicas, then alone, then stopped in the midst of a skipped range and continued."""
    plain = train(pool, 2, corpus, hidden_dropout=0.1)
    skipped = train(pool, 2, corpus, **SKIPPED)
    alone = train(pool, 1, corpus, **SKIPPED)
    tokens = tokens_in(plain)
    assert [len(tokens[n]) for n in tokens] == [4, 4, 4, 8, 8, 8, 8, 8, 8]
    assert tokens == tokens_in(skipped) == tokens_in(alone)

    logged, ordinary = lines_in(skipped), lines_in(plain)
    assert [n for n, line in logged.items() if line.is_left_out] == [2, 3, 4, 7]
    for n, line in ordinary.items():
        counters = (line.consumed_samples, line.consumed_tokens, line.global_batch_size, line.learning_rate)
        its = logged[n]
        assert (its.consumed_samples, its.consumed_tokens, its.global_batch_size, its.learning_rate) == counters
    assert logged[7].loss is None and logged[7].skipped_iterations == 1
    assert logged[1].loss == ordinary[1].loss and logged[5].loss != ordinary[5].loss
    assert skipped[0].losses == pytest.approx(alone[0].losses, rel=1e-6)

    folder = {"save": str(tmp_path), "load": str(tmp_path)}
    begun = train(pool, 1, corpus, **SKIPPED, **folder, exit_interval=3)
    went_on = train(pool, 1, corpus, **SKIPPED, **folder)
    assert begun[0].losses + went_on[0].losses == alone[0].losses
    assert (at(tmp_path, 3).iteration, at(tmp_path, 3).consumed_train_samples) == (3, 12)
    assert "skipping iterations 2 to 4 (--train-range-to-skip)" in went_on[0].output
    assert [len(samples) for samples in tokens_in(went_on).values()] == [8] * 6

    # Other ranges on the way are no other training, and on record.
    elsewhere = {"load": str(tmp_path), "load_step": 3, "save": str(tmp_path / "other")}
    others = train(pool, 1, corpus, **elsewhere, train_range_to_skip=[5, 9])
    assert len(others[0].losses) == 1
    (change,) = (one for one in at(tmp_path / "other", 9).history[-1].changes if one.name == "train_range_to_skip")
    assert (change.before, change.now) == ([7, 7, 2, 4], [5, 9])
    assert "--train-range-to-skip 7 7 2 4 -> 5 9" in others[0].output


def test_ranges_that_are_none_are_refused_before_the_first_step(pool: Pool, corpus: str) -> None:
    (seen,) = pool.run(1, run_training, {"data_path": [corpus], **LENGTH, "train_range_to_skip": [9, 5]})
    assert (seen.status, seen.losses) == (2, [])
    assert "--train-range-to-skip 9 5" in seen.errors
