"""The spike guard's decisions, from losses and gradient norms alone."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import missing
from tests.unit.trainer.recipe.test_options import small
from trainer.recipe.options import OptionsError, parse
from trainer.recipe.schedule import IterationRange
from trainer.recipe.spike_guard import (
    ACTIONS,
    ANOTHER_LEVEL,
    LEAST,
    SKIPPED_IN_A_ROW,
    GuardState,
    SpikeGuard,
    Verdict,
    Window,
    are_alike,
)

#: BLOOM's first spike: gradient norms of iterations 31214 to 31219; the loss was 2.2 before and 5.1 at its peak.
BLOOM_FIRST, BLOOM_NORMS, BLOOM_FOUND_BY = 31214, (0.24, 0.95, 2.4, 15.9, 145.0, 960.0), 31217
USUAL = 0.24


def guard(*actions: str, rollbacks: int = 2) -> SpikeGuard:
    return SpikeGuard(
        frozenset(actions or ("log",)), window=128, deviations=8.0, patience=3, margin=2, rollbacks=rollbacks
    )


def usual_steps(count: int, seed: int = 0) -> list[tuple[float, float]]:
    """Losses and gradient norms with the noise of such a training."""
    chance = random.Random(seed)
    return [(2.2 + chance.gauss(0, 0.013), USUAL * math.exp(chance.gauss(0, 0.15))) for _ in range(count)]


def run(
    own: SpikeGuard, steps: Sequence[tuple[float, float]], state: GuardState, first: int = 1
) -> tuple[GuardState, list[int]]:
    """Return the state after these steps, and which of them were unusual."""
    unusual = []
    for iteration, (loss, norm) in enumerate(steps, start=first):
        judgement = own.judge(state, loss, norm)
        skipped = own.before_update(state, judgement, is_again=True) == Verdict.SKIP
        state = own.after_step(state, iteration, judgement, skipped)
        unusual += [iteration] if judgement.is_unusual else []
    return state, unusual


def test_two_runs_of_a_step_are_compared_by_bits_only_where_sums_have_one_order() -> None:
    """A GPU without --deterministic gives another last bit each time, which is no broken hardware."""
    first, rounded, broken = (5.1, 16.0), (5.1, 16.000001), (5.1, 19.0)
    assert are_alike(first, first, exactly=True) and not are_alike(first, rounded, exactly=True)
    assert are_alike(first, rounded, exactly=False) and not are_alike(first, broken, exactly=False)
    for exactly in (True, False):
        assert are_alike((math.nan, math.inf), (math.nan, math.inf), exactly)
        assert not are_alike((math.nan, 1.0), (1.0, 1.0), exactly)


def test_losses_of_zero_divide_by_nothing() -> None:
    state, unusual = run(guard(), [(0.0, 0.1)] * 60, GuardState())
    assert unusual == [] and len(state.losses) == 60


@pytest.mark.parametrize("seed", range(5))
def test_blooms_spike_is_found_in_time_and_nothing_before_it(seed: int) -> None:
    state, unusual = run(guard(), usual_steps(400, seed), GuardState(), BLOOM_FIRST - 400)
    assert unusual == []
    # The loss follows the norms: nothing of it shows before the norm is 16.
    losses = (2.2, 2.2, 2.2, 2.21, 2.6, 5.1)
    _, unusual = run(guard(), [*zip(losses, BLOOM_NORMS, strict=True)], state, BLOOM_FIRST)
    assert BLOOM_FIRST < unusual[0] <= BLOOM_FOUND_BY
    assert unusual[-1] == BLOOM_FIRST + 5


def test_a_loss_alone_is_found_and_one_that_falls_is_usual() -> None:
    state, _ = run(guard(), usual_steps(200), GuardState())
    assert guard().judge(state, 2.5, USUAL).is_unusual
    assert not guard().judge(state, 1.5, USUAL).is_unusual
    assert guard().judge(state, math.nan, USUAL).is_unusual
    assert not guard().judge(state, 2.2, math.inf).is_unusual  # the engine makes no update of it


def test_where_hardly_anything_varies_a_small_step_is_none() -> None:
    state, _ = run(guard(), [(2.0, 1.0)] * 200, GuardState())
    assert not guard().judge(state, 2.09, 2.9).is_unusual
    assert guard().judge(state, 2.11, 1.0).is_unusual and guard().judge(state, 2.0, 3.1).is_unusual


def test_where_much_varies_what_is_high_otherwise_is_usual() -> None:
    """Of the loss a deviation is 0.15 here, of the norm a factor of 2.3."""
    state, _ = run(guard(), [(2.2, 1.0), (2.0, 1 / 3), (2.4, 3.0), (2.2, 1.0)] * 32, GuardState())
    assert not guard().judge(state, 2.9, 1.0).is_unusual and not guard().judge(state, 2.2, 30.0).is_unusual
    assert guard().judge(state, 5.0, 1.0).is_unusual and guard().judge(state, 2.2, 1e6).is_unusual


def test_nothing_is_unusual_before_enough_is_known() -> None:
    state, _ = run(guard(), usual_steps(LEAST - 1), GuardState())
    assert not guard().judge(state, 100.0, 100.0).is_unusual
    state, _ = run(guard(), usual_steps(LEAST), GuardState())
    assert guard().judge(state, 100.0, 100.0).is_unusual


def test_what_is_done_depends_on_the_tiers_that_are_switched_on() -> None:
    state, _ = run(guard(), usual_steps(200), GuardState())
    odd, even = guard().judge(state, 9.0, 9.0), guard().judge(state, 2.2, USUAL)
    for tiers, first, again in (
        (("log",), Verdict.UPDATE, Verdict.UPDATE),
        (("rollback",), Verdict.UPDATE, Verdict.UPDATE),
        (("skip",), Verdict.SKIP, Verdict.SKIP),
        (("rerun",), Verdict.RERUN, Verdict.UPDATE),
        (("rerun", "skip"), Verdict.RERUN, Verdict.SKIP),
    ):
        own = guard(*tiers)
        assert [own.before_update(state, odd, is_again) for is_again in (False, True)] == [first, again]
        assert own.before_update(state, even, is_again=False) == Verdict.UPDATE
        assert own.acts_before_updates == (first != Verdict.UPDATE)


def test_skipping_ends_and_another_level_becomes_the_usual_one() -> None:
    own = guard("skip")
    state, _ = run(own, usual_steps(200), GuardState())
    higher = [(loss + 3, norm) for loss, norm in usual_steps(300, seed=1)]
    state, unusual = run(own, higher, state, 201)
    assert state.skipped == SKIPPED_IN_A_ROW
    assert ANOTHER_LEVEL < len(unusual) < 128 and unusual[-1] < 201 + 128
    assert not own.judge(state, 5.2, USUAL).is_unusual


def test_what_is_unusual_says_nothing_of_what_is_usual() -> None:
    before, _ = run(guard(), usual_steps(200), GuardState())
    after, unusual = run(guard(), [(9.0, 9.0)] * ANOTHER_LEVEL, before, 201)
    assert len(unusual) == ANOTHER_LEVEL and (after.losses, after.norms) == (before.losses, before.norms)


def test_a_rollback_is_due_when_patience_ends_and_no_more_often_than_allowed() -> None:
    own = guard("rollback", rollbacks=1)
    state, _ = run(own, usual_steps(200), GuardState())
    odd = (9.0, 9.0)
    state, _ = run(own, [odd, (2.2, USUAL), odd], state, 201)
    assert own.window_to_leave_out(state, 203) is None
    state, _ = run(own, [odd], state, 204)
    assert own.window_to_leave_out(state, 204) == IterationRange(199, 206)
    assert guard("log").window_to_leave_out(state, 204) is None
    used = msgspec.structs.replace(state, windows=(Window(199, 206, "why", 190, 204),))
    assert own.window_to_leave_out(used, 204) is None
    later, _ = run(own, [(2.2, USUAL)], state, 205)
    assert own.window_to_leave_out(later, 205) is None


@given(st.lists(st.sampled_from([(2.2, USUAL), (9.0, 9.0), (2.3, 0.3), (math.nan, 1.0)]), max_size=150))
def test_no_series_holds_a_training_up(steps: list[tuple[float, float]]) -> None:
    own, in_a_row = guard("skip", "rerun"), 0
    state, _ = run(own, usual_steps(LEAST), GuardState())
    for iteration, step in enumerate(steps, start=LEAST + 1):
        judgement = own.judge(state, *step)
        is_skipped = own.before_update(state, judgement, is_again=True) == Verdict.SKIP
        in_a_row = in_a_row + 1 if is_skipped else 0
        assert in_a_row <= SKIPPED_IN_A_ROW
        assert is_skipped <= judgement.is_unusual
        state = own.after_step(state, iteration, judgement, is_skipped)


def test_a_checkpoint_of_a_stretch_that_was_gone_back_from_is_not_of_the_way_here() -> None:
    first, second = Window(37, 40, "why", 36, 39), Window(60, 70, "why", 54, 65)
    now = GuardState(windows=(first, second))
    for iteration, kept, is_it in (
        (30, None, True),
        (36, None, True),
        (36, (first, second), True),  # saved again
        (38, (), False),
        (38, (first,), True),
        (54, (first,), True),
        (57, (first,), False),
        (57, (first, second), True),
        (30, (Window(1, 2, "another", 0, 1),), False),  # a user let an earlier one be the latest since
    ):
        assert now.came_through(iteration, None if kept is None else GuardState(windows=kept)) == is_it


@given(st.lists(st.tuples(st.floats(0.01, 50), st.floats(1e-3, 1e3)), max_size=120), st.integers(0, 120))
def test_a_state_that_went_through_json_decides_the_same(steps: list[tuple[float, float]], cut: int) -> None:
    own = SpikeGuard(frozenset(ACTIONS), window=40, deviations=4.0, patience=2, margin=0, rollbacks=2)
    whole = run(own, steps, GuardState())
    begun, before = run(own, steps[:cut], GuardState())
    read = msgspec.json.decode(msgspec.json.encode(begun), type=GuardState)
    state, after = run(own, steps[cut:], read, min(cut, len(steps)) + 1)
    assert (state, before + after) == whole
    assert len(state.losses) == len(state.norms) <= 40


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ("--spike-guard flee", ["--spike-guard flee", "log, skip, rerun, rollback"]),
        ("--spike-guard rollback", ["--spike-guard rollback", "--save"]),
        ("--spike-guard rollback --save there --no-save-optim", ["--spike-guard rollback", "--no-save-optim"]),
        (
            "--spike-guard skip rollback --save there --max-skipped-iterations 2",
            ["--max-skipped-iterations 2", "--spike-guard-patience 3"],
        ),
        ("--spike-guard-patience 11", ["--spike-guard-patience 11"]),
        ("--spike-drill 0", ["--spike-drill 0", "ITERATION:KIND"]),
        ("--spike-drill 7:flood", ["--spike-drill 7:flood", "data, hardware"]),
    ],
)
def test_what_cannot_be_is_one_line(words: str, facts: list[str]) -> None:
    with pytest.raises(OptionsError) as refused:
        parse([*small(), *words.split()], 1)
    assert not missing(str(refused.value), *facts)
