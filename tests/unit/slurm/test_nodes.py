"""sinfo's rows of nodes."""

from __future__ import annotations

import pytest

from opsctl.slurm.nodes import Node, parse_nodes
from opsctl.slurm.rows import FIELD_END, ROW_END


def test_a_node_in_two_partitions_is_one_and_none_is_no_reason() -> None:
    fields = [("node1", "draining", "bad GPU 3; see ticket"), ("node1", "draining", "bad GPU 3; see ticket")]
    text = "\n".join(FIELD_END.join(row) + ROW_END for row in [*fields, ("node2", "idle", "none")]) + "\n"
    assert parse_nodes(text) == [Node("node1", "draining", "bad GPU 3; see ticket"), Node("node2", "idle", "")]


@pytest.mark.parametrize(
    ("state", "is_out"),
    [
        *[(state, False) for state in ("idle", "allocated", "mixed", "completing", "reserved", "allocated+", "idle~")],
        *[(state, True) for state in ("draining", "drained", "drained*", "down", "down*", "failing", "allocated*")],
    ],
)
def test_a_node_that_gets_no_more_work_or_does_not_answer_is_out_of_service(state: str, is_out: bool) -> None:
    assert Node("node1", state, "").is_out_of_service is is_out
