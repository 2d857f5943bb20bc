"""A training's end: one truth, whatever happened to the batch size and the sequence length on the way."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.recipe.lengths import BEGINNING, End, Lengths
from trainer.recipe.options import Options
from trainer.recipe.schedule import BatchRamp


class At(NamedTuple):
    iteration: int = 0
    consumed_train_samples: int = 0
    consumed_train_tokens: int = 0


def stepped(at: At, end: End) -> At:
    """One step on, as the loop takes it."""
    batch = end.ramp.batch_at(at.consumed_train_samples)
    return At(at[0] + 1, at[1] + batch, at[2] + batch * end.sequence_length)


RAMPS = st.builds(
    lambda start, increment, times, samples: BatchRamp(start, increment, samples, start + increment * times),
    st.integers(1, 12),
    st.integers(1, 7),
    st.integers(0, 6),
    st.integers(0, 400),
)
LIMITS = st.tuples(
    st.none() | st.integers(1, 80), st.none() | st.integers(1, 900), st.none() | st.integers(1, 3000)
).filter(lambda limits: limits != (None, None, None))
PLACES = st.builds(At, st.integers(0, 90), st.integers(0, 1000), st.integers(0, 3500))


@given(ramp=RAMPS, limits=LIMITS, at=PLACES, sequence=st.sampled_from((1, 3, 16)))
def test_the_iterations_left_are_those_of_walking_on_until_the_end_is_reached(
    ramp: BatchRamp, limits: tuple[int | None, ...], at: At, sequence: int
) -> None:
    """From any counters: those of another batch size, another ramp or another sequence length too."""
    end, steps = End(ramp, sequence, *limits), 0
    where = at
    while not end.is_reached(where):
        where, steps = stepped(where, end), steps + 1
    assert end.iterations_left(at) == steps
    if steps:
        assert where.consumed_train_samples <= end.samples_to_read(at)
        # Never one step too few, and by samples never one beyond.
        assert end.samples is None or where.consumed_train_samples <= end.samples


@given(ramp=RAMPS, limits=LIMITS, sequence=st.sampled_from((1, 3, 16)), stops=st.integers(1, 30))
def test_a_stop_on_the_way_changes_neither_the_last_iteration_nor_the_data_that_is_built(
    ramp: BatchRamp, limits: tuple[int | None, ...], sequence: int, stops: int
) -> None:
    if ramp.is_ramp and limits[0] is not None:
        limits = (None, limits[1] or 100, limits[2])  # no ramp where iterations are counted
    end, at = End(ramp, sequence, *limits), At()
    for _ in range(stops):
        if end.is_reached(at):
            break
        at = stepped(at, end)
    assert at.iteration + end.iterations_left(at) == end.iterations_left(BEGINNING) or end.is_reached(At())
    assert end.samples_to_read(at) == end.samples_to_read(BEGINNING)


@pytest.mark.parametrize(
    ("limits", "at", "reached"),
    [
        ({"samples": 64}, At(4, 32, 512), False),
        ({"samples": 64}, At(4, 57, 912), True),  # no batch of 8 fits
        ({"samples": 64}, At(4, 56, 896), False),
        ({"tokens": 1000}, At(0, 0, 999), False),  # the step that reaches them is taken
        ({"tokens": 1000}, At(0, 0, 1000), True),
        ({"iterations": 5, "tokens": 1000}, At(5, 40, 640), True),
        ({"samples": 64, "tokens": 10_000}, At(8, 64, 1024), True),
    ],
)
def test_whichever_limit_comes_first_is_the_end(limits: dict[str, int], at: At, reached: bool) -> None:
    assert End(BatchRamp.constant(8), 16, **limits).is_reached(at) is reached


def test_what_is_evaluated_on_from_here_counts_from_what_was() -> None:
    options = Options({"seq_length": 16, "global_batch_size": 16, "train_samples": 64, "eval_iters": 2})
    options = options.replace(eval_interval=3)
    # 4 iterations of 8 were taken, one evaluation of 2 x 8 among them; two of 16 are left, and iteration 6 evaluates.
    length = Lengths.of(options, At(4, 32, 512), consumed_valid_samples=16)
    assert length.train_iterations == 6
    assert length.valid_samples == 16 + (1 + 1) * 2 * 16


def test_a_training_needs_a_length() -> None:
    with pytest.raises(ValueError, match=r"--train-iters.*--train-samples.*--train-tokens"):
        End.of(Options({"global_batch_size": 8, "seq_length": 16}))
