"""Tests of the nodes and ranks at the beginning of a log, and of the node that triage of a log alone then names."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from opsctl.diagnosis.triage.decide import decide
from opsctl.diagnosis.triage.log_header import read_opening
from opsctl.diagnosis.triage.log_part import LogPart
from opsctl.diagnosis.triage.read_evidence import read_log
from opsctl.diagnosis.triage.rules import shipped_rules
from opsctl.run.attempts.verdict import Cause, Verdict

ERROR = "[rank9]: ValueError: a shape does not fit"


def verdict(tmp_path: Path, log: str) -> Verdict:
    (tmp_path / "log").write_text(log + "\n")
    return decide(read_log(LogPart(tmp_path / "log"), shipped_rules(), 20), shipped_rules())


@pytest.mark.parametrize(
    ("lines", "nodes"),
    [
        (["SLURM_JOB_NODELIST=gpu[01-02,07]"], ("gpu01", "gpu02", "gpu07")),
        (["0: nodes: tn114 tn118"], ("tn114", "tn118")),
        (["NODELIST = 'n1,n2'"], ("n1", "n2")),
        (["+ scontrol show hostnames", "n1", "n2", "+ srun train"], ("n1", "n2")),
        (["Allocated nodes:", "qbd491", "qbd492", "starting"], ("qbd491", "qbd492")),
        (["n1 slots=8", "n2 slots=8"], ("n1", "n2")),
        (["node_rank=1 hostname=n5", "node_rank=0 hostname=n7"], ("n7", "n5")),
        (["nodes: 4", "Running on 8 hosts", "running on Linux-5.15", "hosts are up"], ()),
    ],
)
def test_a_list_of_nodes_is_read_in_its_order(lines: list[str], nodes: tuple[str, ...]) -> None:
    assert read_opening(lines).nodes == nodes


@pytest.mark.parametrize(
    "line",
    [
        "ranks 8-15: n2",
        "rank 9 -> n2 local 1 pci 0001:01:00.0",
        "rank table: n1=0-7 n2=8-15",
        "n2: ranks 8 9 10 11",
        "Process rank: 9, world size: 16, device: cuda:1, host: n2",
        '{"rank": 9, "local_rank": 1, "hostname": "n2", "world_size": 16}',
        "Horovod initialized. Hostname n2, pid 1594, rank 9 / size 16, local rank 1 / local size 8.",
        "| fairseq.distributed_utils | initialized host n2 as rank 9",
        "[ 9] host n2 process 9 of 16",
        "Hello from rank 9 of 16 on n2 (local rank 1)",
        "global rank 9 / 16, local rank 1, host n2",
        "I am rank 9 on node n2",
        "#  Rank  9 Group  0 Pid  99819 on     n2 device  1 [0x90] NVIDIA A100-SXM4-80GB",
        "(TrainController pid=7) - (ip=10.0.0.2, pid=8) world_rank=9, local_rank=1, node_rank=1\nn2 10.0.0.2",
        "[n1] NODE_RANK=0 GPUS_PER_NODE=8 MASTER_ADDR=n1\n[n2] NODE_RANK=1 GPUS_PER_NODE=8 MASTER_ADDR=n1",
        "[n1] | distributed init (rank 0/16): tcp://n1:4000\n[n2] | distributed init (rank 9/16): tcp://n1:4000",
        "+ nodes_array=(n1 n2)\n+ torchrun --nproc_per_node 8",
        "n1 slots=8\nn2 slots=8",
        "| rank | host | gpu |\n|------|------|-----|\n| 1 | n1 | 1 |\n| 9 | n2 | 1 |",
        "SLURM_NODELIST=n[1-2]\nSLURM_NTASKS_PER_NODE=8",
        "Nodes: n1 n2\nworld_size: 16",
        "Nodes: n1 n2\n  nproc_per_node   : 8",
    ],
)
def test_an_error_of_a_rank_has_the_node_that_the_beginning_gives_the_rank(tmp_path: Path, line: str) -> None:
    said = verdict(tmp_path, f"{line}\nstep 1 loss 2.0\nstep 2 loss 2.0\n{ERROR}")
    assert (said.cause, said.node, said.rank) == (Cause.USER_CODE, "n2", 9)


def test_lines_that_look_like_a_table_of_ranks_name_no_node() -> None:
    lines = [
        "rank 0: step1 done",
        "rank 3 on cuda3",
        "Rank 0 using gpu0",
        "rank 3 in layer12 fp16",
        "process 3 on shard-12",
        "rank 1: tp1-pp0",
        "Rank 3 on H100",
        "local rank 3 on n4",
        "rank 2 -> train.py3.log",
        "comm 0x55fd10 rank 8 nranks 16",
        "rank 0 step 10 training on gpt2",
    ]
    assert read_opening(lines).placements == () and read_opening(lines).hosts == frozenset()


@pytest.mark.parametrize(
    ("log", "cause", "node"),
    [
        ("ray nodes: n-a=10.0.0.1 n-b=10.0.0.2\n(Worker pid=7, ip=10.0.0.2) [rank9]: torch.OutOfMemoryError: CUDA out "
         "of memory. Tried to allocate 1 GiB", Cause.GPU_OOM, "n-b"),
        ("head n1 10.0.0.1\nworker n2 10.0.0.2\n(raylet, ip=10.0.0.2) [E 1 1] (raylet) node_manager.cc:3064: 3 Workers "
         "(tasks / actors) killed due to memory pressure (OOM)", Cause.HOST_OOM, "n2"),
        ("pod-w-0 step 1\npod-w-1 step 1\npod-w-0 step 2\npod-w-1 step 2\npod-w-1 ValueError: x",
         Cause.USER_CODE, "pod-w-1"),
        ("[check] n1: PASS\n[check] n2: GPU 6 had uncorrectable memory errors and row remapping has failed.",
         Cause.GPU_ECC, "n2"),
        ("Fri Sep  1 12:31:45 2023[1,9]<stdout>:n2:88:99 [1] NCCL INFO Bootstrap : Using ib0:10.14.2.2<0>\n"
         "Fri Sep  1 12:31:45 2023[1,9]<stderr>:ValueError: x", Cause.USER_CODE, "n2"),
        ("srun: error: n2: task 1: Killed\n0: torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
         Cause.UNKNOWN, "n2"),
        ("[w-2] step 1\n[w-1] step 1\n[w-2] W0409 07:28:49.5 1359 torch/distributed/elastic/agent/server/api.py:719] "
         "Received 15 death signal, shutting down workers\n[w-1] ncclRemoteError: A call failed", Cause.UNKNOWN, "w-2"),
        ("[event] NodeNotReady node/n2 Node n2 status is now: NodeNotReady\n[rank0]: ncclRemoteError: x",
         Cause.NODE_FAILURE, "n2"),
        ("n1 start GCP Metadata Service says termination is imminent\nnodes: n1 n2", Cause.PREEMPTED, "n1"),
        ("3: [rank27]: ValueError: x\n0: [rank1]: ncclRemoteError: x\nsrun: error: n1: task 0: Exited with exit code 1",
         Cause.USER_CODE, ""),
        ("n4:1:2 [5] NCCL WARN Cuda failure 'uncorrectable ECC error encountered'", Cause.GPU_ECC, "n4"),
    ],
    ids=["Ray", "Ray's memory", "a column", "a check", "mpirun", "killed", "told to end", "Kubernetes", "a cloud",
         "another task", "NCCL quotes CUDA"],
)  # fmt: skip
def test_a_log_alone_names_the_node_where_a_person_could(tmp_path: Path, log: str, cause: Cause, node: str) -> None:
    said = verdict(tmp_path, log)
    assert (said.cause, said.node) == (cause, node)


def test_the_rank_that_a_stall_names_on_the_next_line_is_the_one_that_hangs(tmp_path: Path) -> None:
    said = verdict(
        tmp_path,
        "Hostname n2, pid 5, rank 1 / size 4\nW stall_inspector.cc:105] Missing ranks:\n1: [reduce_0, b]",
    )
    assert (said.cause, said.node, said.rank) == (Cause.HANG, "n2", 1)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", Cause.GPU_ERROR),
        ("MisconfigurationException: You requested 8 gpus. But your machine only has: [0, 1]", Cause.GPU_LOST),
    ],
)
def test_what_one_node_of_several_says_alone_is_the_nodes_and_what_all_say_the_users(
    tmp_path: Path, error: str, cause: Cause
) -> None:
    of_one = f"nodes: n1 n2\n2: {error}\n3: {error}\nsrun: error: n2: tasks 2-3: Exited with exit code 1"
    said = verdict(tmp_path, f"{of_one}\nsrun: error: n1: tasks 0-1: Terminated")
    assert (said.cause, said.node, said.user_fault) == (cause, "n2", False)
    said = verdict(tmp_path, f"0: {error}\n{of_one}\nsrun: error: n1: tasks 0-1: Exited with exit code 1")
    assert (said.cause, said.node, said.user_fault) == (Cause.USER_CODE, "", True)


def test_a_crash_that_came_first_counts_for_more_than_what_nccl_says_on_other_ranks(tmp_path: Path) -> None:
    block = (
        "  time      : 2026-11-21_11:00:0{0}\n  host      : n{1}\n"
        "  rank      : {1} (local_rank: 0)\n  exitcode  : -{2} (pid: 5)"
    )
    log = ["[rank1]: ncclInternalError: Internal check failed.", block.format(1, 2, 11), block.format(5, 1, 6)]
    said = verdict(tmp_path, "\n".join(log))
    assert (said.cause, said.node, said.rank) == (Cause.USER_CODE, "n2", 2)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "line",
    [
        "a-1." * 500,
        "rank 0 " + "n1 " * 600,
        "host " * 400,
        "n1=0-3 " * 300,
        "1.1.1.1 " * 250,
        "x" * 2000 + "[1-",
        "[a]" * 680,
    ],
)
def test_half_a_mebibyte_of_lines_that_nearly_are_tables_is_read_in_seconds(line: str) -> None:
    begun = time.process_time()
    read_opening([f"rank nodes {line}"] * 256)
    assert time.process_time() - begun < 10
