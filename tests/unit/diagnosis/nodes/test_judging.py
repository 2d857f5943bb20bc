from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnosis.nodes.exclusion_list import Exclusion
from opsctl.diagnosis.nodes.judging import End, ends_of, judge, room, score_of, used_despite_exclusion
from opsctl.diagnosis.nodes.node_evidence import WEIGHTS, NodeEvidence, Policy
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.verdict import Cause, Verdict
from opsctl.slurm.nodes import Node
from tests.facts import missing
from trainer.formats.attempt.attempt_records import Failure

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
DAY = timedelta(days=1)
OF_NO_NODE = sorted(set(Cause) - set(WEIGHTS))
NODES = [f"n{number}" for number in range(20)]


def seen(node: str, kind: str, confidence: float, days_ago: float = 0.0, attempt: str = "") -> NodeEvidence:
    return NodeEvidence(
        node=node, kind=kind, at=NOW - days_ago * DAY, words=f"{kind} seen", confidence=confidence, attempt=attempt
    )


def bad(node: str, days_ago: float) -> End:
    return End(NOW - days_ago * DAY, frozenset(NODES[:4]), frozenset({node}), words=f"ended on {node}")


def good(days_ago: float, *nodes: str) -> End:
    return End(NOW - days_ago * DAY, frozenset(nodes), is_good=True)


CASES = {
    "nothing": ([], [], []),
    "one sure word about hardware": ([seen("n1", "gpu-ecc", 0.8)], [], ["n1"]),
    "one that is not sure": ([seen("n1", "gpu-ecc", 0.79)], [], []),
    "one sure word that is no hardware's": ([seen("n1", "nccl", 1.0)], [], []),
    "a sure word of half a year ago": ([seen("n1", "gpu-ecc", 1.0, 180)], [], []),
    "slow in two attempts": ([seen("n1", "slow", 0.9, 0, "a"), seen("n1", "slow", 0.9, 0.1, "b")], [], ["n1"]),
    "slow twice in one attempt": ([seen("n1", "slow", 0.9, 0, "a"), seen("n1", "slow", 0.9, 0.1, "a")], [], []),
    "hangs and failed collectives, however many": ([seen("n1", kind, 1.0) for kind in ("hang", "nccl") * 9], [], []),
    "hangs of a node that is slow": ([seen("n1", "slow", 0.9), *[seen("n1", "hang", 1.0)] * 2], [], []),
    "hangs in two attempts of a node that is slow": (
        [seen("n1", "slow", 0.9), seen("n1", "hang", 1.0, 0, "a"), seen("n1", "hang", 1.0, 0, "b")],
        [],
        ["n1"],
    ),
    "a user's errors, however many": ([seen("n1", "user-code", 1.0, day) for day in range(9)], [], []),
    "a word that only a later release knows": ([seen("n1", "gremlins", 1.0) for _ in range(9)], [], []),
    "two bad ends in a row": ([], [bad("n1", 2), bad("n1", 1)], ["n1"]),
    "one bad end": ([], [bad("n1", 1)], []),
    "two with one on another node between": ([], [bad("n1", 3), bad("n2", 2), bad("n1", 1)], ["n1"]),
    "two with a good one on it between": ([], [bad("n1", 3), good(2, "n1"), bad("n1", 1)], []),
    "two with a good one without it between": ([], [bad("n1", 3), good(2, "n2"), bad("n1", 1)], ["n1"]),
    "two and a good one after": ([], [bad("n1", 3), bad("n1", 2), good(1, "n1")], []),
    "two a month apart": ([], [bad("n1", 30), bad("n1", 1)], []),
    "a node that Slurm does not know": ([seen("gone", "gpu-ecc", 1.0)], [bad("gone", 2), bad("gone", 1)], []),
    "a clock that is hours ahead": ([seen("n1", "gpu-lost", 0.9, -0.3)], [], ["n1"]),
    "a confidence that is no number": ([seen("n1", "gpu-lost", math.nan)], [], []),
}


@pytest.mark.parametrize("name", CASES)
def test_a_node_is_excluded_by_what_speaks_against_it(name: str) -> None:
    evidence, ends, expected = CASES[name]
    found = judge(evidence, ends, NOW, NODES, Policy())
    assert [one.node for one in found if one.stands(NOW)] == expected
    assert all(one.why and one.evidence for one in found)


def test_an_exclusion_ends_by_itself_and_the_next_one_of_the_node_is_longer() -> None:
    first = judge([seen("n1", "gpu-ecc", 0.9)], [], NOW, NODES, Policy())
    assert [(one.until - NOW) / DAY for one in first] == [2]
    after = NOW + 3 * DAY
    kept = judge([seen("n1", "gpu-ecc", 0.9)], [], after, NODES, Policy(), first)
    assert not kept[0].stands(after)  # the same evidence is not counted twice
    again = [seen("n1", "gpu-ecc", 0.9), seen("n1", "gpu-ecc", 0.9, -3)]
    second = judge(again, [], after, NODES, Policy(), kept)
    assert [(one.times, (one.until - after) / DAY) for one in second] == [(2, 4)]


def test_what_a_person_lets_back_in_stays_in_until_something_new_is_seen() -> None:
    ends = [bad("n1", 2), bad("n1", 1)]
    (record,) = judge([], ends, NOW, NODES, Policy())
    let_in = msgspec.structs.replace(record, removed_at=NOW, removed_by="alice")
    assert judge([], ends, NOW + DAY, NODES, Policy(), [let_in]) == (let_in,)
    later = [*ends, bad("n1", -1), bad("n1", -1.5)]
    assert judge([], later, NOW + 2 * DAY, NODES, Policy(), [let_in])[0].stands(NOW + 2 * DAY)


def kept_in(found: Sequence[Exclusion], nodes: Sequence[Node], policy: Policy) -> dict[str, str]:
    return used_despite_exclusion([one for one in found if one.stands(NOW)], nodes, policy)


def serving(names: Iterable[str], state: str = "idle") -> list[Node]:
    return [Node(name, state, "") for name in names]


def test_exclusions_by_a_person_stay_and_use_up_the_cap_for_evidence() -> None:
    persons = [Exclusion(node=f"n{n}", since=NOW, until=NOW + DAY, by="alice", why="slow") for n in range(5, 9)]
    found = judge([seen("n1", "gpu-ecc", 0.9), seen("n2", "gpu-ecc", 1.0)], [], NOW, NODES, Policy(), persons)
    used = kept_in(found, serving(NODES), Policy())
    assert list(used) == ["n1"] and missing(used["n1"], "10 %", "20 nodes") == []


def test_where_the_run_needs_every_node_none_is_kept_out_and_that_is_said() -> None:
    found = judge([seen("n1", "gpu-ecc", 1.0)], [], NOW, NODES[:4], Policy())
    needs = {"n1": "the run needs 4 of the partition's 4 nodes in service"}
    assert kept_in(found, serving(NODES[:4]), Policy(needed=4)) == needs
    assert kept_in(found, serving(NODES[:4]), Policy(needed=3)) == {}


def test_nodes_that_are_out_of_service_are_none_that_a_run_can_go_to_and_take_no_room() -> None:
    found = judge([seen("n1", "gpu-ecc", 0.9), seen("n9", "gpu-ecc", 1.0)], [], NOW, NODES[:10], Policy())
    nodes = [*serving(NODES[:8]), *serving(NODES[8:10], "drained")]
    assert list(kept_in(found, nodes, Policy(needed=8))) == ["n1"]
    assert kept_in(found, nodes, Policy(needed=7)) == {}


def test_records_of_other_partitions_nodes_stay_as_they_are() -> None:
    other = Exclusion(node="other", since=NOW - 9 * DAY, until=NOW + DAY, by="evidence", why="ecc", times=1)
    assert judge([seen("other", "gpu-ecc", 1.0)], [], NOW, NODES, Policy(), [other]) == (other,)


KINDS = st.sampled_from([*(str(cause) for cause in Cause), *WEIGHTS, "probe", "gremlins"])
LINES = st.lists(
    st.builds(
        seen,
        st.sampled_from(NODES),
        KINDS,
        st.floats(0, 1),
        st.floats(-1, 100),
        st.sampled_from(["", "a", "b", "c"]),
    ),
    max_size=60,
)
ENDS = st.lists(st.builds(bad, st.sampled_from(NODES), st.floats(0, 20)), max_size=12)


@given(LINES, st.floats(0, 200), st.floats(0, 200))
def test_what_was_seen_never_weighs_more_later(lines: list[NodeEvidence], first: float, more: float) -> None:
    earlier = score_of(lines, NOW + first * DAY)
    assert score_of(lines, NOW + (first + more) * DAY) <= earlier + 1e-9


@given(LINES, ENDS, st.integers(1, 20), st.floats(0, 100), st.integers(1, 20))
def test_evidence_never_excludes_more_nodes_than_the_cap_nor_such_as_the_run_needs(
    lines: list[NodeEvidence], ends: list[End], nodes: int, percent: float, needed: int
) -> None:
    policy = Policy(most_excluded_percent=percent, needed=min(needed, nodes))
    partition = NODES[:nodes]
    found = judge(lines, sorted(ends, key=lambda end: end.at), NOW, partition, policy)
    used = kept_in(found, serving(partition), policy)
    excluded = [one.node for one in found if one.stands(NOW) and one.node not in used]
    assert len(excluded) <= room(nodes, nodes, 0, policy)[0] <= max(1, math.floor(nodes * percent / 100))
    assert len(excluded) <= nodes - policy.needed and set(excluded) <= set(partition)
    assert judge(lines, sorted(ends, key=lambda end: end.at), NOW, partition, policy, found) == found


@given(st.lists(st.builds(seen, st.sampled_from(NODES), st.sampled_from(OF_NO_NODE), st.floats(0, 1))))
def test_a_users_errors_never_count(lines: list[NodeEvidence]) -> None:
    assert score_of(lines, NOW) == 0.0 and judge(lines, [], NOW, NODES, Policy()) == ()


def test_evidence_that_a_clock_ahead_has_dated_is_counted_once() -> None:
    line = [seen("n1", "gpu-ecc", 0.9, -0.3)]
    first = judge(line, [], NOW, NODES, Policy())
    after = judge(line, [], NOW + 3 * DAY, NODES, Policy(), first)
    assert first[0].stands(NOW) and after == first and not after[0].stands(NOW + 3 * DAY)


def test_one_attempt_seen_twice_by_two_who_closed_it_at_once_counts_once() -> None:
    twice = [seen("n1", "network", 1.0, days_ago, "a") for days_ago in (0.0, 0.01)] * 2
    assert score_of(twice, NOW) == score_of(twice[:1], NOW) and judge(twice, [], NOW, NODES, Policy()) == ()
    sure = judge([seen("n1", "gpu-ecc", 0.9, 0, "a")] * 2, [], NOW, NODES, Policy())
    assert [(one.times, len(one.evidence)) for one in sure] == [(1, 1)]


NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
KILLED = Failure(rank=3, node="n2", signal=9)
RAISED = Failure(rank=3, node="n2", exit_code=1, message="ValueError: bad shape")


def ended(
    reason: str, first: Failure | None = None, verdict: Verdict | None = None, lost: tuple[str, ...] = ()
) -> Attempt:
    return Attempt(
        number=4,
        id="12-ab",
        job_id=12,
        nodes=("n1", "n2"),
        closed_at=NOON,
        reason=reason,
        first_failure=first,
        lost_nodes=lost,
        verdict=verdict,
    )


@pytest.mark.parametrize(
    ("attempt", "blamed"),
    [
        (ended("signal", KILLED), set()),  # a person may have sent it
        (ended("node-failure", lost=("n1",)), {"n1"}),
        (ended("failed", RAISED), set()),  # the fault is unknown
        (ended("failed", RAISED, Verdict(cause="gpu-ecc", node="n2")), {"n2"}),
        (ended("failed", RAISED, Verdict(cause="unknown", node="n2")), set()),  # as without a verdict
        (ended("signal", KILLED, Verdict(cause="unknown", node="n2")), set()),
        (ended("signal", KILLED, Verdict(cause="gpu-lost", node="n1")), {"n1"}),
        (ended("hang", verdict=Verdict(cause="hang", node="n2")), set()),  # the program's own may be as well
        (ended("failed", RAISED, Verdict(cause="nccl", node="n2")), set()),
        (ended("node-failure", lost=("n1",), verdict=Verdict(cause="unknown", node="n2")), {"n1"}),
        (ended("failed", RAISED, Verdict(cause="disk-full", node="n2")), set()),
        (ended("failed", RAISED, Verdict(cause="user-code", node="n2", user_fault=True)), set()),
        (ended("signal", KILLED, Verdict(cause="host-oom", node="n2", user_fault=True)), set()),
        (ended("signal", KILLED, Verdict(cause="diverged", node="n2")), set()),
        (ended("signal", Failure(rank=0, node="n1", signal=15)), set()),  # the signal that ends the other ranks
        (ended("cancelled", KILLED), set()),
        (ended("preempted", KILLED), set()),
        (ended("exit-duration"), set()),
    ],
)
def test_a_bad_end_blames_a_node_for_its_hardware_alone(attempt: Attempt, blamed: set[str]) -> None:
    (end,) = ends_of([attempt])
    assert end.blamed == blamed and bool(end.words) == bool(blamed)


def test_what_has_not_ended_says_nothing() -> None:
    assert ends_of([Attempt(number=1, id="1", job_id=1, nodes=("n1",))]) == []
