"""Test which checkpoints are sent where."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from opsctl.run.checkpoints.backups import BackedUp, What
from opsctl.run.config.schema import BackupTable
from opsctl.transfer.backups.schedule import rules_of
from opsctl.transfer.sending.plan import Chosen, Here
from opsctl.transfer.sending.plan import choose as choose_by_rules

TO = "s3://bucket/run"
POLICY = BackupTable(to=(TO,), full_every=100, weights_every=30)
THEN = datetime(2026, 3, 1, tzinfo=UTC)
FULL, WEIGHTS = What.FULL, What.WEIGHTS


def here(*iterations: int, **more: object) -> list[Here]:
    return [Here(one, f"sum{one}", **more) for one in iterations]  # type: ignore[arg-type]


def line(iteration: int, what: What = FULL, **more: object) -> BackedUp:
    facts = {"to": TO, "of": f"sum{iteration}", "verified_at": THEN, **more}
    return BackedUp(iteration=iteration, what=what, **facts)  # type: ignore[arg-type]


def choose(
    found: list[Here], ledger: Iterable[BackedUp], policy: BackupTable, to: str, *more: Any, **named: Any
) -> Chosen:
    return choose_by_rules(found, ledger, to, rules_of(policy), *more, **named)


def due(found: list[Here], policy: BackupTable = POLICY, ledger: tuple[BackedUp, ...] = (), **more: object) -> object:
    chosen = choose(found, ledger, policy, TO, **more)
    assert all(one.reason and one.news for one in chosen.due)
    return {one.iteration: one.what for one in chosen.due}


def test_full_ones_and_between_them_weights_but_not_twice() -> None:
    assert due(here(*range(10, 310, 10))) == {
        **dict.fromkeys((30, 60, 90, 120, 150, 180, 210, 240, 270), WEIGHTS),
        **dict.fromkeys((100, 200, 300), FULL),
    }


def test_the_reason_names_the_rule() -> None:
    reasons = {one.iteration: one.reason for one in choose(here(30, 100), (), POLICY, TO).due}
    assert reasons[30].endswith(" 30") and reasons[100].endswith(" 100")
    (pinned,) = choose(here(47, is_pinned=True), (), POLICY, TO).due
    assert "pinned" in pinned.reason


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        (replace(POLICY, weights_every=0), {100: FULL}),
        (replace(POLICY, full_every=0), {30: WEIGHTS, 60: WEIGHTS, 90: WEIGHTS}),
        (replace(POLICY, full_every=0, weights_every=0, pinned=(70,)), {70: FULL}),
        (replace(POLICY, full_every=0, weights_every=0), {}),
        (BackupTable(), {}),
    ],
)
def test_each_rule_sends_what_it_says(policy: BackupTable, wanted: dict[int, What]) -> None:
    chosen = choose(here(*range(10, 110, 10)), (), policy, TO)
    assert {one.iteration: one.what for one in chosen.due} == wanted


def test_the_usual_is_whole_every_ten_thousand_and_weights_every_three_thousand() -> None:
    chosen = choose(here(*range(1000, 31_000, 1000)), (), BackupTable(to=(TO,)), TO)
    assert [one.iteration for one in chosen.due if one.what is FULL] == [10_000, 20_000, 30_000]
    weights = [one.iteration for one in chosen.due if one.what is WEIGHTS]
    assert weights == [3000, 6000, 9000, 12_000, 15_000, 18_000, 21_000, 24_000, 27_000]


def test_what_was_pinned_as_it_was_saved_goes_whole_where_it_has_optimizer_states() -> None:
    assert due(here(47, is_pinned=True)) == {47: FULL}
    assert due(here(47, is_pinned=True), replace(POLICY, spikes=False)) == {}
    assert due(here(100, is_full=False)) == {100: WEIGHTS}


@pytest.mark.parametrize(
    ("ledger", "is_due"),
    [
        ((), True),
        ((line(100),), False),
        ((line(100, WEIGHTS),), True),
        ((line(100, of="other"),), True),
        ((line(100, verified_at=None),), True),
        ((line(100, lost="layer_01"),), True),
        ((line(100, to="/elsewhere"),), True),
    ],
)
def test_a_full_one_is_sent_until_it_is_proven_there_and_again_when_it_is_lost(
    ledger: tuple[BackedUp, ...], is_due: bool
) -> None:
    assert due(here(100), ledger=ledger) == ({100: FULL} if is_due else {})
    (lost,) = choose(here(100), (line(100, lost="layer_01"),), POLICY, TO).due
    assert "layer_01" in lost.news


def test_weights_are_not_sent_where_the_whole_is_but_are_where_that_is_lost() -> None:
    assert due(here(30), ledger=(line(30),)) == {}
    assert due(here(30), ledger=(line(30, lost="gone"),)) == {30: WEIGHTS}
    assert due(here(30), ledger=(line(30, lost="gone"), line(30, WEIGHTS))) == {}


def test_what_is_named_goes_and_nothing_else() -> None:
    assert due(here(10, 100), named=(10,)) == {10: FULL}
    assert due(here(10, 100), named=(10,), weights_only=True) == {10: WEIGHTS}
    left = choose(here(10), (), POLICY, TO, named=(20,)).left
    assert list(left) == [20] and left[20]


def test_what_is_not_complete_or_was_given_up_is_left_with_its_reason() -> None:
    found = [*here(100, problem="manifest.json is missing"), *here(200, 300)]
    chosen = choose(found, (), POLICY, TO, latest=200)
    assert {one: "manifest.json" in why for one, why in chosen.left.items()} == {100: True, 300: False}
    assert [one.iteration for one in chosen.due] == [200]


_found = st.lists(
    st.builds(
        Here,
        iteration=st.integers(0, 60),
        of=st.sampled_from(["a", "b"]),
        is_full=st.booleans(),
        is_pinned=st.booleans(),
        problem=st.sampled_from(["", "", "half"]),
    ),
    unique_by=lambda one: one.iteration,
)
_ledger = st.lists(
    st.builds(
        BackedUp,
        to=st.sampled_from([TO, "/other"]),
        what=st.sampled_from([FULL, WEIGHTS]),
        iteration=st.integers(0, 60),
        of=st.sampled_from(["a", "b"]),
        verified_at=st.sampled_from([None, THEN]),
        lost=st.sampled_from(["", "gone"]),
    )
)
_policy = st.builds(BackupTable, full_every=st.integers(0, 20), weights_every=st.integers(0, 20), spikes=st.booleans())


@given(_found, _ledger, _policy, st.integers(0, 60))
def test_once_all_that_is_due_is_on_record_nothing_is_due_and_nothing_half_ever_is(
    found: list[Here], ledger: list[BackedUp], policy: BackupTable, latest: int
) -> None:
    chosen = choose(found, ledger, policy, TO, latest)
    known = {one.iteration: one for one in found}
    assert all(not known[one.iteration].problem and one.iteration <= latest for one in chosen.due)
    assert all(known[one.iteration].is_full for one in chosen.due if one.what is FULL)
    sent = [line(one.iteration, one.what, of=known[one.iteration].of) for one in chosen.due]
    again = choose(found, [*ledger, *sent], policy, TO, latest)
    assert again.due == () and again.left == chosen.left
    assert set(again.there) == {*chosen.there, *(one.iteration for one in chosen.due)}
