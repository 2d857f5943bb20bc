"""Tests of the node that a log names indirectly: as a peer, a late rank, by another name, or as the only one."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.diagnosis.triage.decide import decide
from opsctl.diagnosis.triage.findings import findings_of_line
from opsctl.diagnosis.triage.lines import read_line
from opsctl.diagnosis.triage.log_header import read_opening
from opsctl.diagnosis.triage.log_part import LogPart
from opsctl.diagnosis.triage.rank_locations import usual_name
from opsctl.diagnosis.triage.read_evidence import read_log
from opsctl.diagnosis.triage.rules import shipped_rules
from opsctl.run.attempts.verdict import Cause, Verdict

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
STEPS = "step 1 loss 2.0\nstep 2 loss 2.0\n"
NODES = "nodes: n1 n2 n3\n"


def verdict(tmp_path: Path, log: str) -> Verdict:
    (tmp_path / "log").write_text(log + "\n")
    return decide(read_log(LogPart(tmp_path / "log"), shipped_rules(), 20), shipped_rules())


@pytest.mark.parametrize(
    ("name", "usual"),
    [
        ("n1", "n1"),
        ("n1.hpc.example.org", "n1"),
        ("n1.ib", "n1"),
        ("n1-ib0", "n1"),
        ("n1-hsn0.example.org", "n1"),
        ("n10.ib", "n10.ib"),
        ("n2", "n2.example.org"),
    ],
)
def test_a_node_has_the_name_of_the_list_whatever_its_domain_or_interface(name: str, usual: str) -> None:
    assert usual_name(name, ("n1", "n2.example.org")) == usual


@pytest.mark.parametrize(
    ("line", "node", "rank"),
    [
        ("2024-06-02T16:13:44.883Z: [1,12]<stdout>:n4:1:2 [0] NCCL WARN x", "n4", 12),
        ("2023-09-01,12:19:02 |  n4 | ERROR | ValueError: x", "n4", None),
        ("2026-09-01 12:19:02,123 - n4 - ERROR - ValueError: x", "n4", None),
        ("[n4] [rank3]: ValueError: x", "n4", 3),
        ("n4 [rank3]: ValueError: x", "n4", 3),
        ("10.0.0.4: ValueError: x", "10.0.0.4", None),
        ("[n4] [8812031.552013] NVRM: Xid (PCI:0000:bb:00): 94", "n4", None),
        ("[n4] dmesg: NVRM: Xid (PCI:0000:bb:00): 79", "n4", None),
        ("2026-09-01 12:19:02 - trainer - ERROR - ValueError: x", "", None),
    ],
)
def test_what_stands_in_front_of_a_line_names_who_printed_it(line: str, node: str, rank: int | None) -> None:
    said = read_line(line, NOON)
    assert (said.node, said.rank) == (node, rank)


@pytest.mark.parametrize(
    "line",
    [
        "2 hosts: n1 (0-7) n2 (8-15)",
        "layout n1=[0..7] n2=[8..15]",
        "2026-09-01,12:00:00 | n2 | INFO | Device: cuda:1. Process (global: 9, local 1), total 16.",
    ],
)
def test_a_table_of_ranks_needs_no_word_for_them(tmp_path: Path, line: str) -> None:
    said = verdict(tmp_path, f"{line}\n{STEPS}[rank9]: ValueError: a shape does not fit")
    assert (said.node, said.rank) == ("n2", 9)


def test_numbers_that_do_not_follow_each_other_are_no_table_of_ranks() -> None:
    assert read_opening(["lr sched n1 (0-7) n2 (9-15)", "blocks b1=[4..7] b2=[8..15]"]).placements == ()


def test_a_pod_and_an_address_have_the_name_of_their_node(tmp_path: Path) -> None:
    pods = "pods: w-0=gke-7c22 w-1=gke-7c41\n" + STEPS
    assert verdict(tmp_path, f"{pods}w-1 [rank9]: ValueError: x").node == "gke-7c41"
    assigned = pods.replace("pods: w-0=gke-7c22 w-1=", "Successfully assigned ml/w-1 to ")
    assert verdict(tmp_path, f"{assigned}w-1 [rank9]: ValueError: x").node == "gke-7c41"
    nccl = "[1,4]<stdout>:c-44:1:2 [0] NCCL WARN NET/IB : async event: port error"
    mpi = f"{nccl}\nmpirun noticed that process rank 4 with PID 7 on node 10.0.0.9 exited"
    assert verdict(tmp_path, f"{mpi} on signal 11 (Segmentation fault).").node == "c-44"


FROM = "n{0}:1:2 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to {1}<45763> failed : No route"
USING = "".join(
    f"n{at}:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.{at}<0>\n" for at in (1, 2, 3)
)


@pytest.mark.parametrize(
    ("lines", "node"),
    [
        ([FROM.format(1, "10.0.0.3"), FROM.format(2, "10.0.0.3")], "n3"),
        ([FROM.format(1, "n3.ib"), FROM.format(2, "n3-ib0")], "n3"),
        ([FROM.format(1, "10.0.0.3")], ""),
        ([FROM.format(1, "10.0.0.2"), FROM.format(2, "10.0.0.1")], ""),
        ([FROM.format(1, "10.0.0.3"), FROM.format(2, "10.0.0.3"), FROM.format(3, "10.0.0.1")], ""),
        ([FROM.format(1, "10.9.9.9"), FROM.format(2, "10.9.9.9")], ""),
        ([FROM.format(2, "10.0.0.2"), FROM.format(2, "10.0.0.2").replace("[0]", "[5]")], "n2"),
    ],
    ids=["by address", "by interface", "one says it", "each other", "also reports", "not known", "within a node"],
)
def test_the_silent_node_that_several_others_do_not_reach_is_the_one(
    tmp_path: Path, lines: list[str], node: str
) -> None:
    said = verdict(tmp_path, USING + STEPS + "\n".join(lines))
    assert (said.cause, said.node) == (Cause.NETWORK, node)


@pytest.mark.parametrize(
    ("log", "cause", "node", "rank"),
    [
        ("rank 9 on n2\nSome timed out task names:\n/job:jax_worker/replica:0/task:9", Cause.HANG, "n2", 9),
        ("rank 9 on n2\ntasks are unhealthy (stopped sending heartbeats):\n/job:jax_worker/replica:0/task:9",
         Cause.HANG, "n2", 9),
        ("ranks 8-9: n2\nn1: [Rank 0]: Rank 8 failed to pass monitoredBarrier\nn1: [Rank 0]: Rank 9 failed to pass "
         "monitoredBarrier", Cause.HANG, "n2", None),
        (f"{NODES}slurmstepd: error: execve(): accelerate: No such file or directory\nsrun: error: n2: task 1: Exited "
         "with exit code 2\nsrun: error: n1: task 0: Terminated", Cause.USER_CODE, "n2", None),
        (f"{NODES}pod train-w evicted from n2, the node was low on resource: ephemeral-storage", Cause.DISK_FULL, "n2",
         None),
        ("rank 9 on n2\n  Rank 9 -- GPU 1 managed by process 77 on node n2", Cause.HANG, "n2", 9),
        ("rank 9 on n2\n[rank0]: api.CheckpointException: CheckpointException ranks:dict_keys([9])\n[rank1]: "
         "api.CheckpointException: CheckpointException ranks:dict_keys([9])", Cause.CHECKPOINT, "n2", 9),
        ("rank 0 on n1\n[rank0]: ValueError: x\n[rank1]: ValueError: y, see rank 0 for more\n[rank2]: ValueError: y, "
         "see rank 0 for more", Cause.USER_CODE, "n1", 0),
        ("The node n1 has joined the rendezvous as rank 0\nThe node n2 has joined the rendezvous as rank 1\nFault "
         "nodes are: [1]", Cause.NETWORK, "n2", None),
        (f"{NODES}srun: error: Task launch for StepId=1.0 failed on node n2: Job credential expired",
         Cause.NODE_FAILURE, "n2", None),
        (f"{NODES}srun: error: Task launch for StepId=1.0 failed on node n2: Socket timed out on send/recv operation\n"
         "srun: error: Task launch for StepId=1.0 failed on node n3: Socket timed out on send/recv operation",
         Cause.NETWORK, "", None),
        (f"{NODES}ssh: connect to host n2 port 22: No route to host", Cause.NODE_FAILURE, "n2", None),
        (f"{NODES}pdsh@n1: n2: ssh exited with exit code 255", Cause.NODE_FAILURE, "n2", None),
        (f"{NODES}ORTE has lost communication with a remote daemon.\n  Remote daemon: [[2,0],4] on node n2",
         Cause.NODE_FAILURE, "n2", None),
    ],
    ids=["JAX", "heartbeats", "a barrier", "a program that is missing", "an eviction", "RAS", "a part of a checkpoint",
         "others point to it", "a network check", "a launch", "launches", "ssh", "pdsh", "Open MPI"],
)  # fmt: skip
def test_a_line_that_names_another_than_who_prints_it_is_about_that_one(
    tmp_path: Path, log: str, cause: Cause, node: str, rank: int | None
) -> None:
    said = verdict(tmp_path, log)
    assert (said.cause, said.node, said.rank) == (cause, node, rank)


RANKS = "n1: ranks 0-7\nn2: ranks 8-15\n" + STEPS


@pytest.mark.parametrize(
    ("ranks", "node", "rank"),
    [((12, 9, 3), "n2", 12), ((8, 9, 10, 11), "n2", 8), ((0, 1, 2, 3), "", None), ((0, 5, 9, 12), "", None)],
    ids=["few of many", "one node alone", "the first node's", "many"],
)
def test_an_error_of_a_few_ranks_or_of_a_later_node_alone_has_the_place_of_the_first(
    tmp_path: Path, ranks: tuple[int, ...], node: str, rank: int | None
) -> None:
    log = RANKS + "\n".join(f"[rank{one}]: ValueError: x" for one in ranks)
    said = verdict(tmp_path, log)
    assert (said.cause, said.node, said.rank) == (Cause.USER_CODE, node, rank)


def test_a_warning_that_goes_on_counts_for_less_than_the_error_after_it(tmp_path: Path) -> None:
    warned = "[rank3]: WARNING | Handling error (SyntaxError('x')). Ignoring."
    said = verdict(tmp_path, f"{warned}\n[rank4]: tarfile.ReadError: unexpected end of data")
    assert (said.cause, said.rank) == (Cause.DATA, 4)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "line", ["ml-1.ib" * 300, "connect to " * 190, "n1 [" * 500, "[" + "a1-" * 700, "1.1.1." * 350]
)
def test_a_line_that_nearly_names_a_place_is_read_at_once(line: str) -> None:
    begun = time.process_time()
    for _ in range(50):
        findings_of_line(shipped_rules(), f"{line} Connection closed by remote peer", "log", 0, NOON)
    assert time.process_time() - begun < 5
