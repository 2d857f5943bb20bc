"""The batch ramp-up against the numbers that the published runs printed."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.recipe.schedule import BatchRamp, samples_of_tokens, train_iterations

TR1 = BatchRamp(16, 16, 5_000_000, 1024)
TR11_AS_PRINTED = BatchRamp(16, 16, 9_765_625, 2048)


def steps_by_the_rule(ramp: BatchRamp, train_samples: int) -> int:
    """One step at a time, the way a training runs."""
    consumed = steps = 0
    while consumed + ramp.batch_at(consumed) <= train_samples:
        consumed += ramp.batch_at(consumed)
        steps += 1
    return steps


def test_the_ramp_of_the_13b_run_has_the_printed_table() -> None:
    stages = TR1.stages()
    assert TR1.intervals == 63
    assert TR1.samples_per_interval == 79365
    assert [stage.batch_size for stage in stages[:4]] == [16, 32, 48, 64]
    assert [stage.nominal_steps for stage in stages[:4]] == [4960, 2480, 1653, 1240]
    assert [stage.actual_steps for stage in stages[:4]] == [4961, 2480, 1654, 1240]
    assert stages[-1].batch_size == 1024
    assert stages[-1].actual_steps is None


def test_the_ramp_printed_for_the_176b_run_has_the_printed_table() -> None:
    stages = TR11_AS_PRINTED.stages()
    assert TR11_AS_PRINTED.intervals == 127
    assert TR11_AS_PRINTED.samples_per_interval == 76894
    assert [stage.nominal_steps for stage in stages[:2]] == [4805, 2402]
    assert [stage.actual_steps for stage in stages[:2]] == [4806, 2403]
    at, stage_of_384 = next((at, stage) for at, stage in enumerate(stages) if stage.batch_size == 384)
    assert TR11_AS_PRINTED.nominal_steps_through()[at] == 18146
    assert stage_of_384.first_step - 1 == 17_948
    assert stage_of_384.first_step - 1 + (stage_of_384.actual_steps or 0) == 18_148


@pytest.mark.parametrize("ramp", [TR1, TR11_AS_PRINTED])
def test_nominal_steps_are_the_exact_sums_rounded_down_once(ramp: BatchRamp) -> None:
    sizes = range(ramp.start, ramp.global_batch_size, ramp.increment)
    exact = itertools.accumulate(Fraction(ramp.samples_per_interval, size) for size in sizes)
    assert ramp.nominal_steps_through() == [math.floor(steps) for steps in exact]


@pytest.mark.parametrize(
    ("ramp", "train_samples", "iterations"), [(TR1, 300_000_000, 311_541), (TR11_AS_PRINTED, 220_000_000, 128_728)]
)
def test_train_iterations_are_the_printed_ones(ramp: BatchRamp, train_samples: int, iterations: int) -> None:
    assert train_iterations(ramp, train_samples) == iterations


@given(
    start=st.integers(1, 12),
    increment=st.integers(1, 7),
    increments=st.integers(0, 9),
    ramp_samples=st.integers(0, 3000),
    train_samples=st.integers(0, 6000),
)
def test_stages_and_iterations_are_those_of_walking_step_by_step(
    start: int, increment: int, increments: int, ramp_samples: int, train_samples: int
) -> None:
    ramp = BatchRamp(start, increment, ramp_samples, start + increment * increments)
    assert train_iterations(ramp, train_samples) == steps_by_the_rule(ramp, train_samples)
    consumed, step = 0, 1
    for stage in ramp.stages():
        assert (stage.first_sample, stage.first_step) == (consumed, step)
        for _ in range(stage.actual_steps or 3):
            assert ramp.batch_at(consumed) == stage.batch_size
            consumed += stage.batch_size
            step += 1


def test_options_ask_for_a_ramp_or_for_none() -> None:
    assert BatchRamp.of({"rampup_batch_size": [16, 16, 5_000_000], "global_batch_size": 1024}) == TR1
    assert BatchRamp.of({"rampup_batch_size": None, "global_batch_size": 8}) == BatchRamp.constant(8)


def test_a_batch_stays_global_after_the_ramp_and_without_one() -> None:
    assert TR1.batch_at(0) == 16
    assert TR1.batch_at(79_365) == 16
    assert TR1.batch_at(79_366) == 32
    assert TR1.batch_at(5_000_001) == 1024
    assert BatchRamp.constant(8).batch_at(0) == 8
    assert BatchRamp(16, 0, 100, 16).batch_at(50) == 16  # start equals the end: the original divides by zero here
    assert BatchRamp(4, 4, 0, 16).batch_at(0) == 16


@pytest.mark.parametrize(
    ("ramp", "complaint"),
    [
        ((16, 16, 100, 100), r"\b84\b.*\b16\b"),
        ((16, 0, 100, 32), "increment"),
        ((64, 16, 100, 32), r"\b32\b"),
        ((16, 16, -1, 32), "-1 samples"),
        ((0, 16, 100, 32), "positive"),
    ],
)
def test_a_ramp_that_cannot_be_walked_is_refused_with_its_numbers(
    ramp: tuple[int, int, int, int], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        BatchRamp(*ramp)


def test_tokens_become_samples() -> None:
    assert samples_of_tokens(260_000_000_000, 2048) == 126_953_125
