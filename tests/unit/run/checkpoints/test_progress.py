"""Checkpoints at the end of a training."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.run.checkpoints.inventory import Checkpoint, is_finished
from trainer.recipe.options import parse

#: A model, and nothing of how long it trains; on one rank the batch is one sample unless an argument says more.
MODEL = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --micro-batch-size 1 --lr 1e-3 "
    "--vocab-size 300"
)


@pytest.mark.parametrize(
    ("arguments", "finished"),
    [
        (["--train-samples", "400"], True),
        (["--train-samples", "401"], False),
        (["--train-samples=4_00"], True),
        (["--train_samples", "400"], True),
        (["--train-sam", "400"], True),  # as the trainer parses it
        (["--train-iters", "100"], True),
        (["--train-iters", "101"], False),
        (["--train-samples", "400", "--train-samples", "500"], False),  # a one-off argument comes later and wins
        (["--train-samples", "403", "--global-batch-size", "4"], True),  # 3 samples make no further step
        (["--train-samples", "404", "--global-batch-size", "4"], False),
        (["--train-samples", "403", "--global-batch-size", "16", "--rampup-batch-size", "4", "4", "2_000"], True),
        (["--train-samples", "404", "--global-batch-size", "16", "--rampup-batch-size", "4", "4", "2_000"], False),
    ],
)
def test_finished_is_when_the_samples_or_iterations_asked_for_are_reached(arguments: list[str], finished: bool) -> None:
    options = parse([*MODEL.split(), *arguments], world_size=1)
    assert is_finished(options, Checkpoint(Path("/c"), 100, 400)) is finished


def test_without_a_checkpoint_nothing_is_finished() -> None:
    assert not is_finished(parse([*MODEL.split(), "--train-samples", "1"], world_size=1), None)
