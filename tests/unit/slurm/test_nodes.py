"""sinfo's rows of nodes, and folded lists of nodes."""

from __future__ import annotations

import pytest

from opsctl.slurm.nodes import Node, expand_nodes, in_partition, parse_nodes
from opsctl.slurm.rows import FIELD_END, ROW_END

ROWS = [
    ("node1", "draining", "bad GPU 3; see ticket", "gpu*", "192000"),
    ("node1", "draining", "bad GPU 3; see ticket", "all", "192000"),
    ("node2", "idle", "none", "all", "n/a"),
]
TEXT = "\n".join(FIELD_END.join(row) + ROW_END for row in ROWS) + "\n"
NODE1 = Node("node1", "draining", "bad GPU 3; see ticket", ("gpu*", "all"), 192_000)
NODE2 = Node("node2", "idle", "", ("all",))


def test_a_node_in_two_partitions_is_one_and_none_is_no_reason() -> None:
    assert parse_nodes(TEXT) == [NODE1, NODE2]


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        ("all", ("all", [NODE1, NODE2])),
        ("gpu", ("gpu", [NODE1])),
        ("gpu,all", ("gpu,all", [NODE1, NODE2])),
        (None, ("gpu", [NODE1])),
        ("cpu", ("cpu", [])),
    ],
)
def test_a_partition_has_its_nodes_once_and_the_default_one_is_marked(
    partition: str | None, expected: tuple[str, list[Node]]
) -> None:
    assert in_partition(parse_nodes(TEXT), partition) == expected


def test_without_a_default_partition_nobody_can_tell_which_nodes_a_run_may_be_given() -> None:
    assert in_partition([NODE2], None) == ("", [])


@pytest.mark.parametrize(
    ("state", "is_out"),
    [
        *[(state, False) for state in ("idle", "allocated", "mixed", "completing", "reserved", "allocated+", "idle~")],
        *[(state, True) for state in ("draining", "drained", "drained*", "down", "down*", "failing", "allocated*")],
    ],
)
def test_a_node_that_gets_no_more_work_or_does_not_answer_is_out_of_service(state: str, is_out: bool) -> None:
    assert Node("node1", state, "").is_out_of_service is is_out


@pytest.mark.parametrize(
    ("folded", "names"),
    [
        ("x1", ["x1"]),
        ("x[01-03,05]", ["x01", "x02", "x03", "x05"]),
        ("x[8-11]", ["x8", "x9", "x10", "x11"]),
        ("b2,a[1-2]", ["b2", "a1", "a2"]),
        ("x[5,1-2]", ["x5", "x1", "x2"]),
        ("jean-zay-iam[09-10],gpu", ["jean-zay-iam09", "jean-zay-iam10", "gpu"]),
        ("", []),
    ],
)
def test_nodes_come_in_the_order_and_padding_of_the_list(folded: str, names: list[str]) -> None:
    assert expand_nodes(folded) == names


def test_racks_and_nodes_are_expanded_together() -> None:
    assert expand_nodes("r[1-2]n[1-2]") == ["r1n1", "r1n2", "r2n1", "r2n2"]
