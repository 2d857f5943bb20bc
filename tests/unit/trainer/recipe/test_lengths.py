"""The length of a training and its schedules, from options as users give them."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.lengths import Lengths
from trainer.recipe.options import parse, to_arguments

SHAPE = {
    "num_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "seq_length": 2048,
    "micro_batch_size": 1,
    "vocab_size": 64,
    "lr": 6e-5,
}


def of(**options: Any) -> tuple[Lengths, LearningRateSchedule]:
    given = parse(to_arguments({**SHAPE, **options}), 1)
    return Lengths.of(given), LearningRateSchedule.of(given)


def test_the_13b_runs_options_give_its_iterations_and_warm_up() -> None:
    run, schedule = of(
        rampup_batch_size=[16, 16, 5_000_000],
        global_batch_size=1024,
        train_samples=300_000_000,
        lr_decay_samples=126_953_125,
        lr_warmup_samples=216_320,
        lr_decay_style="cosine",
        min_lr=6e-6,
        eval_interval=1000,
        eval_iters=5,
    )
    assert run.train_iterations == 311_541
    assert (schedule.warmup_samples, schedule.decay_samples) == (216_320, 126_953_125)
    assert run.ramp.batch_at(0) == 16
    # one evaluation per thousand iterations and one at the end, 5 x 1024 samples each
    assert run.valid_samples == (311 + 1) * 5 * 1024
    assert run.test_samples == 5 * 1024


def test_iterations_count_as_global_batches() -> None:
    run, schedule = of(global_batch_size=8, train_iters=100, lr_warmup_iters=10)
    assert (run.train_iterations, run.train_samples) == (100, 800)
    assert (schedule.warmup_samples, schedule.decay_samples) == (80, 800)
    assert schedule.at(80) == pytest.approx(6e-5)
    _, shorter = of(global_batch_size=8, train_iters=100, lr_decay_iters=50, lr_warmup_fraction=0.1)
    assert (shorter.warmup_samples, shorter.decay_samples) == (40, 400)


def test_without_a_length_of_the_decay_it_is_the_training() -> None:
    assert of(global_batch_size=8, train_samples=900)[1].decay_samples == 900


def test_a_decay_that_cannot_be_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="must end before"):
        LearningRateSchedule.of(parse(to_arguments({**SHAPE, "train_samples": 64}), 1).replace(lr_warmup_samples=64))
