"""Evaluation of many validation groups on several ranks, as a training goes on and without one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.test_tensorboard import scalars
from tests.distributed.whole_training import Seen, run_training, write_corpus

pytestmark = pytest.mark.distributed

GROUPS = ["news", "code", "prose", "mixed", "tail"]
#: Samples of one evaluation of a group: 2 global batches of 8.
ASKED = 16
Losses = dict[tuple[str, str], float]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options: training data, and groups of one source and of two."""
    corpus = write_corpus(tmp_path_factory.mktemp("corpus"), documents=200)
    parts = [f"1 {begin}:{end} {corpus}" for begin, end in ((0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1))]
    parts[3] = f"0.3 0.5:0.7 {corpus}, 0.7 0.8:0.9 {corpus}"
    return {
        "train_weighted_split_paths": [f"train: 1 0:0.5 {corpus}"],
        "valid_weighted_split_paths": [f"{name}: {part}" for name, part in zip(GROUPS, parts, strict=True)],
        **{"train_iters": 6, "eval_iters": 2, "eval_interval": 2, "valid_num_workers": 2},
    }


def seen_and_read(options: dict[str, Any]) -> tuple[Seen, list[list[int]]]:
    """In a rank: a training, and which places of each group's data its evaluations have read, in the groups' order."""
    from trainer.data.gpt_dataset import Cyclic

    read: dict[int, list[int]] = {}
    usual = Cyclic.read_rows

    def read_rows(self: Any, first: int, rows: Any) -> tuple[int, int]:
        places = read.setdefault(id(self._dataset), [])
        places.extend(place % len(self._dataset) for place in range(first, first + len(rows)))
        return usual(self, first, rows)

    setattr(Cyclic, "read_rows", read_rows)  # noqa: B010 - this rank ends with the test
    return run_training(options), list(read.values())


def losses_in(output: str) -> Losses:
    line = r"(?m)^ (\w+) loss at (.*?) \| lm loss value: (\S+) "
    return {(group, when): float(loss) for group, when, loss in re.findall(line, output)}


@pytest.fixture(scope="module")
def alone(pool: Pool, data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Losses, Path]:
    """Return one process's results for each group, and its last save."""
    folder = tmp_path_factory.mktemp("alone") / "checkpoints"
    (seen,) = pool.run(1, run_training, {**data, "save": str(folder)})
    assert seen.status == 0, seen.errors
    return losses_in(seen.output), folder


def test_every_group_is_read_on_from_where_it_was_on_stages_and_replicas_and_has_a_curve(
    pool: Pool, data: dict[str, Any], alone: tuple[Losses, Path], tmp_path: Path
) -> None:
    layout = {"pipeline_model_parallel_size": 2, "tensorboard_dir": str(tmp_path)}
    ranks = pool.run(4, seen_and_read, {**data, **layout})
    assert [seen.status for seen, _ in ranks] == [0] * 4, ranks[0][0].errors
    whens = ["iteration 2", "iteration 4", "iteration 6", "the end of training for val data"]
    losses = losses_in(ranks[-1][0].output)
    assert list(losses) == [(group, when) for when in whens for group in GROUPS]
    assert losses == pytest.approx(alone[0], rel=1e-6)
    # Each stage that reads has two replicas, which share out every batch.
    for replicas in ([read for _, read in ranks[:2]], [read for _, read in ranks[2:]]):
        for first, second in zip(*replicas, strict=True):
            assert sorted(first + second) == list(range(len(whens) * ASKED))
    points = scalars(tmp_path)
    for group in GROUPS:
        curve = points[f"lm-loss-validation/{group}/lm loss validation"]
        assert curve == [(at, pytest.approx(losses[group, f"iteration {at}"], rel=1e-6)) for at in (2, 4, 6)]


@pytest.mark.parametrize("option", ["eval_only", "no_train"])
def test_a_checkpoint_is_evaluated_alone_as_its_training_did_at_its_end_and_stays_as_it_is(
    pool: Pool, data: dict[str, Any], alone: tuple[Losses, Path], option: str
) -> None:
    losses, folder = alone
    before = {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}
    ranks = pool.run(2, run_training, {**data, option: True, "load": str(folder), "save": str(folder)})
    assert [seen.status for seen in ranks] == [0, 0], ranks[0].errors
    at_end = {key: loss for key, loss in losses.items() if key[1] == "the end of training for val data"}
    assert len(at_end) == len(GROUPS) and losses_in(ranks[-1].output) == pytest.approx(at_end, rel=1e-6)
    assert ranks[0].losses == []
    assert {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))} == before
