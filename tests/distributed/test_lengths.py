"""A training ends at its length, whatever its batch sizes were, and a start ends at its own limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsctl.run.checkpoints.inventory import is_finished, last_checkpoint
from tests.distributed.pool import Pool
from tests.distributed.whole_training import TINY, Seen, run_training, write_corpus
from trainer.recipe.options import parse, to_arguments

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def train(pool: Pool, corpus: str, folder: Path, **options: Any) -> Seen:
    given = {"data_path": [corpus], "save": str(folder), "load": str(folder), "lr_decay_samples": 64, **options}
    seen: Seen = pool.run(1, run_training, given)[0]
    assert seen.status == 0, seen.errors
    return seen


def finished(folder: Path, **options: Any) -> bool:
    """Return opsctl's view of the newest checkpoint."""
    return is_finished(parse(to_arguments({**TINY, **options}), 1), last_checkpoint(folder))


@pytest.mark.parametrize(("batch", "more"), [(16, [16, 16]), (4, [4] * 8), (24, [24])])
def test_a_training_in_samples_ends_by_samples_when_the_batch_size_changed_on_the_way(
    pool: Pool, corpus: str, tmp_path: Path, batch: int, more: list[int]
) -> None:
    first = train(pool, corpus, tmp_path, train_samples=64, exit_interval=4)
    assert first.batch_sizes == [8] * 4
    assert not finished(tmp_path, train_samples=64, global_batch_size=batch)
    rest = train(pool, corpus, tmp_path, train_samples=64, global_batch_size=batch)
    assert rest.batch_sizes == more  # with 24, no further batch fits the 8 samples that are left
    assert f"{4 + len(more)}/" in rest.output
    assert finished(tmp_path, train_samples=64, global_batch_size=batch)
    assert train(pool, corpus, tmp_path, train_samples=64, global_batch_size=batch).losses == []


def test_a_training_in_iterations_has_its_iterations_whatever_the_batch_size(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    """More samples are read than the options came to at the beginning."""
    iterations: dict[str, Any] = {"train_iters": 6, "lr_decay_samples": None, "lr_decay_iters": 6}
    assert len(train(pool, corpus, tmp_path, **iterations, exit_interval=4).losses) == 4
    rest = train(pool, corpus, tmp_path, **iterations, global_batch_size=24, override_lr_scheduler=True)
    assert rest.batch_sizes == [24, 24]


def test_a_training_in_tokens_ends_with_the_step_that_reaches_them(pool: Pool, corpus: str, tmp_path: Path) -> None:
    """A step of 8 samples of 16 tokens has 128."""
    seen = train(pool, corpus, tmp_path, train_tokens=300)
    assert len(seen.losses) == 3 and finished(tmp_path, train_tokens=300)
    assert not finished(tmp_path, train_tokens=385) and finished(tmp_path, train_tokens=384)
    both = train(pool, corpus, tmp_path, train_tokens=700, train_samples=32)
    assert len(both.losses) == 1  # whichever comes first


def test_a_start_leaves_saved_at_its_samples_and_no_later_start_goes_beyond(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    report = tmp_path / "exit.json"
    options = {"train_samples": 64, "exit_samples": 20, "exit_report_path": str(report)}
    assert train(pool, corpus, tmp_path, **options).batch_sizes == [8] * 3
    assert json.loads(report.read_text())["reason"] == "exit-samples"
    assert (tmp_path / "latest").read_text() == "global_step3"
    again = train(pool, corpus, tmp_path, **options)
    assert again.losses == [] and "exiting program after 24 samples" in again.output


def test_a_start_leaves_saved_after_so_many_iterations_of_its_own(pool: Pool, corpus: str, tmp_path: Path) -> None:
    options = {"train_samples": 64, "exit_after_iters": 3}
    assert [len(train(pool, corpus, tmp_path, **options).losses) for _ in range(3)] == [3, 3, 2]
    assert (tmp_path / "latest").read_text() == "global_step8"
