"""The checkpoints that are kept."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from opsctl.run.checkpoints.retention import Kept, Progress, verdicts
from opsctl.run.config.schema import RetentionTable

#: No rule but the two that cannot be turned off.
LEAST = RetentionTable(last=2, full_percent=0, until_backed_up=0)
BATCH = 8


def every(interval: int, last: int, **more: object) -> list[Kept]:
    return [Kept(step, step * BATCH, **more) for step in range(interval, last + 1, interval)]  # type: ignore[arg-type]


def kept(found: list[Kept], policy: RetentionTable, latest: int | None = None, samples: int | None = 8000) -> list[int]:
    reached = max(one.iteration for one in found) if latest is None else latest
    return [one.iteration for one in verdicts(found, policy, Progress(reached, samples)) if not one.goes]


@pytest.mark.parametrize(
    ("policy", "stays"),
    [
        (LEAST, [900, 1000]),
        (replace(LEAST, last=3), [800, 900, 1000]),
        (replace(LEAST, every=400), [400, 800, 900, 1000]),
        (replace(LEAST, pinned=(300, 350)), [300, 900, 1000]),
        (replace(LEAST, until_backed_up=500), [500, 900, 1000]),
        (replace(LEAST, full_percent=25), [200, 400, 600, 800, 900, 1000]),
        (replace(LEAST, full_percent=45), [400, 800, 900, 1000]),
    ],
)
def test_each_rule_keeps_what_it_says(policy: RetentionTable, stays: list[int]) -> None:
    assert kept(every(100, 1000), policy) == stays


def test_the_usual_keeps_the_last_fifteen_a_full_one_each_tenth_and_thousands_until_they_are_backed_up() -> None:
    stays = kept(every(100, 10_000), RetentionTable(), samples=80_000)
    assert stays == [*range(1000, 8600, 1000), *range(8600, 10_001, 100)]
    one = verdicts(every(100, 10_000), RetentionTable(), Progress(10_000, 80_000))[9]
    assert any("1,000" in reason for reason in one.reasons)
    backed_up = verdicts(every(100, 10_000), RetentionTable(full_percent=0), Progress(10_000, 80_000), lambda _: "")
    assert [one.iteration for one in backed_up if not one.goes] == [*range(8600, 10_001, 100)]


def test_every_reason_is_told() -> None:
    found = every(100, 300, is_pinned=True)
    latest, pinned, newest, multiple = verdicts(found, replace(LEAST, every=300), Progress(300, None))[2].reasons
    assert "latest" in latest and "pinned" in pinned and " 2" in newest and " 300" in multiple


def test_what_is_not_complete_or_abandoned_or_being_loaded_stays_and_counts_for_nothing() -> None:
    found = [*every(100, 500), Kept(600, 0, problem="manifest.json is missing"), *every(100, 800)[6:]]
    told = {one.iteration: len(one.reasons) for one in verdicts(found, LEAST, Progress(500, 8000, loading={200}))}
    assert told == {100: 0, 200: 1, 300: 0, 400: 1, 500: 2, 600: 2, 700: 1, 800: 1}


def test_where_the_length_is_not_known_every_full_one_stays_and_those_of_weights_may_go() -> None:
    found = [*every(100, 300), *every(100, 900, is_full=False)[3:]]
    assert kept(found, replace(LEAST, full_percent=10), samples=None) == [100, 200, 300, 800, 900]


def test_one_that_is_not_finite_takes_the_place_of_no_finite_one() -> None:
    bad = every(100, 1000, is_finite=False)
    assert kept([*every(100, 800), *bad[8:]], LEAST) == [700, 800, 900, 1000]
    spaced = [*every(100, 300), *bad[3:4], *every(100, 1000)[4:]]
    assert kept(spaced, replace(LEAST, full_percent=45)) == [300, 700, 900, 1000]


POLICIES = st.builds(
    RetentionTable,
    last=st.integers(0, 6),
    every=st.integers(0, 9),
    full_percent=st.sampled_from((0.0, 3.0, 10.0, 40.0, 100.0)),
    until_backed_up=st.integers(0, 9),
    pinned=st.lists(st.integers(1, 60), max_size=3).map(tuple),
)
FOUND = st.lists(
    st.builds(
        Kept,
        st.integers(1, 60),
        st.just(0),
        is_full=st.booleans(),
        is_pinned=st.booleans(),
        problem=st.sampled_from(("", "", "", "cut")),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda one: one.iteration,
).map(lambda found: [Kept(o.iteration, o.iteration * BATCH, o.is_full, o.is_pinned, o.problem) for o in found])


@given(FOUND, POLICIES, st.sampled_from((None, 60 * BATCH)), st.sets(st.integers(1, 60), max_size=2), st.data())
def test_whatever_the_policy_what_a_training_needs_is_never_pruned(
    found: list[Kept], policy: RetentionTable, samples: int | None, loading: set[int], data: st.DataObject
) -> None:
    latest = data.draw(st.sampled_from([one.iteration for one in found]))
    told = verdicts(found, policy, Progress(latest, samples, loading))
    goes = {one.iteration for one in told if one.goes}
    assert [one.iteration for one in told] == sorted(one.iteration for one in found)
    complete = sorted(one.iteration for one in found if not one.problem and one.iteration <= latest)
    never = {latest, *complete[-2:], *loading, *policy.pinned}
    never |= {one.iteration for one in found if one.is_pinned or one.problem or one.iteration > latest}
    assert not goes & never


@given(FOUND, POLICIES)
def test_pruning_again_and_again_as_the_training_goes_on_never_opens_a_gap_between_full_ones(
    found: list[Kept], policy: RetentionTable
) -> None:
    whole = sorted((one for one in found if not one.problem and one.is_full), key=lambda one: one.iteration)
    there: list[Kept] = []
    for one in whole:
        there.append(one)
        told = verdicts(there, policy, Progress(one.iteration, 60 * BATCH))
        there = [left for left, verdict in zip(there, told, strict=True) if not verdict.goes]
    apart = 60 * BATCH * policy.full_percent / 100
    for before, after in itertools.pairwise(there):
        lost = [one for one in whole if before.iteration < one.iteration < after.iteration]
        assert not policy.full_percent or after.consumed_samples - before.consumed_samples <= apart or not lost
