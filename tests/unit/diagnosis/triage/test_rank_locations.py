"""The nodes of ranks and tasks according to the lines of a log, and the location of a cause by them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.diagnosis.triage.decide import decide
from opsctl.diagnosis.triage.elastic import tasks_of_srun
from opsctl.diagnosis.triage.findings import SlurmEnd
from opsctl.diagnosis.triage.lines import read_line
from opsctl.diagnosis.triage.log_header import Placement
from opsctl.diagnosis.triage.log_part import LogPart
from opsctl.diagnosis.triage.rank_locations import learn, placements_in
from opsctl.diagnosis.triage.read_evidence import read_attempt
from opsctl.diagnosis.triage.rules import shipped_rules
from opsctl.run.attempts.verdict import Cause, Verdict

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
REST = "srun: error: n01: tasks 0-7: Exited with exit code 1\nsrun: error: n02: tasks 8,10-15: Exited with exit code 1"
INIT = (
    "{host}:{pid}:77 [{device}] NCCL INFO ncclCommInitRank comm 0x1 rank {rank} nranks {of} cudaDev 0 - Init COMPLETE"
)
WAITED = "[rank{0}]: [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, x)"


def verdict(tmp_path: Path, log: str, nodes: tuple[str, ...] = (), state: str = "FAILED") -> Verdict:
    (tmp_path / "log").write_text(log + "\n")
    part, rules = LogPart(tmp_path / "log"), shipped_rules()
    return decide(read_attempt(tmp_path, tmp_path / "attempt", part, nodes, SlurmEnd(state), rules, 10), rules)


@pytest.mark.parametrize(
    ("log", "node", "rank"),
    [
        (f"9: {OUT_OF_MEMORY}\n{REST}\nsrun: error: n02: task 9: Exited with exit code 1", "n02", 9),
        (f"[rank11]: {OUT_OF_MEMORY}\n{INIT.format(host='pool-b', pid=8, device=3, rank=11, of=16)}", "pool-b", 11),
        (f"worker-3: [rank13]: {OUT_OF_MEMORY}", "worker-3", 13),
        (f"global_rank_mapping=defaultdict(<class 'list'>, {{'w-0': [0, 1], 'w-1': [2, 3]}})\n"
         f"[rank2]: {OUT_OF_MEMORY}", "w-1", 2),
        (f"  time      : 2026-11-21_11:00:00\n  host      : n9\n  rank      : 7 (local_rank: 3)\n"
         f"  exitcode  : 1 (pid: 5)\n[rank7]: {OUT_OF_MEMORY}", "n9", 7),
        ("mpirun noticed that process rank 3 with PID 71 on node c12 exited on signal 9 (Killed).", "c12", 3),
        (f"srun: error: n02: task 9: Killed\n{REST}", "n02", 9),
        (f"srun: error: n02: task 9: Bus error (core dumped)\n{REST}", "n02", 9),
        ("srun: error: n02: task 1: Killed\nsrun: Terminating StepId=1.0\n"
         "srun: error: n01: task 0: Exited with exit code 1", "n02", None),
    ],
)  # fmt: skip
def test_a_rank_has_the_node_that_any_line_of_the_log_tells_of(
    tmp_path: Path, log: str, node: str, rank: int | None
) -> None:
    said = verdict(tmp_path, log)
    assert (said.node, said.rank) == (node, rank)


BLOCK = (
    "1:   time      : 2026-11-21_11:00:00\n1:   host      : localhost\n1:   rank      : 5 (local_rank: 1)\n"
    "1:   exitcode  : -{signal} (pid: 5)\n1:   error_file: <N/A>\n"
)
LOST = "0: [rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:265.\n"
ENDS = "0: slurmstepd-n01: error: *** STEP 7.0 ON n01 CANCELLED AT 2026-11-21T11:00:01 ***\n"
SRUN = "srun: error: n02: task 1: Exited with exit code 1\nsrun: error: n01: task 0: Exited with exit code 1"


@pytest.mark.parametrize(
    ("log", "cause", "rank"),
    [
        (LOST + BLOCK.format(signal=9) + ENDS + SRUN, Cause.UNKNOWN, 5),
        (LOST + BLOCK.format(signal=11) + ENDS + SRUN, Cause.USER_CODE, 5),
        (LOST + BLOCK.format(signal=15) + ENDS + SRUN, Cause.UNKNOWN, 5),
        (LOST + ENDS + BLOCK.format(signal=15) + SRUN, Cause.NETWORK, None),  # it was ended like the others
    ],
    ids=["killed", "crashed", "SIGTERM", "SIGTERM for all"],
)
def test_a_launcher_whose_host_calls_itself_localhost_is_on_the_node_of_its_task(
    tmp_path: Path, log: str, cause: Cause, rank: int | None
) -> None:
    for nodes in ((), ("n01", "n02")):
        said = verdict(tmp_path, log, nodes)
        assert (said.cause, said.rank, said.node) == (cause, rank, "" if rank is None else "n02")


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (BLOCK.format(signal=15) + ENDS, Cause.CANCELLED),
        (ENDS + BLOCK.format(signal=15), Cause.CANCELLED),
        (BLOCK.format(signal=15) + ENDS + LOST + SRUN, Cause.CANCELLED),  # consequences
        (BLOCK.format(signal=15) + SRUN + "\n" + ENDS, Cause.UNKNOWN),  # srun ended what was left of it
        (LOST + BLOCK.format(signal=15) + ENDS, Cause.UNKNOWN),
        (BLOCK.format(signal=9) + ENDS, Cause.UNKNOWN),
        (BLOCK.format(signal=15), Cause.UNKNOWN),
    ],
)
def test_a_step_that_was_cancelled_before_anything_had_failed_is_that_also_where_slurm_cannot_be_asked(
    tmp_path: Path, log: str, cause: Cause
) -> None:
    assert verdict(tmp_path, log, state="").cause is cause


def test_of_a_smaller_communicator_the_rank_is_none_of_the_jobs() -> None:
    lines = [
        INIT.format(host="n1", pid=5, device=1, rank=9, of=16),
        INIT.format(host="n2", pid=6, device=0, rank=1, of=2),
    ]
    places = learn([one for line in lines for one in placements_in(line, NOON)], (), (), ())
    assert dict(places.node_of_rank) == {8: "n1", 9: "n1"}


def test_the_node_of_a_kernels_line_is_the_kernels_and_its_rank_nobodys() -> None:
    said = read_line("[default3]:[rank59]: hx27 kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off", NOON)
    assert (said.node, said.rank, said.local_rank) == ("hx27", None, None)


def test_the_one_rank_that_speaks_of_a_gpu_is_the_rank_of_the_gpu_that_the_kernel_names(tmp_path: Path) -> None:
    kernel = "hx27 kernel: NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."
    said = verdict(
        tmp_path,
        f"{kernel}\n[rank59]: RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
    )
    assert (said.cause, said.node, said.rank) == (Cause.GPU_LOST, "hx27", 59)


def test_tasks_are_ranks_where_a_node_has_several_and_not_where_lines_number_them_otherwise() -> None:
    several = [Placement("n1", task=0), Placement("n1", task=1), Placement("n2", task=2)]
    assert learn(several, (), (), ()).tasks_are_ranks
    assert not learn([*several, Placement(rank=8, task=1)], (), (), ()).tasks_are_ranks
    assert not learn([Placement("n1", task=0), Placement("n2", task=1)], (), (), ("n1", "n2")).tasks_are_ranks


def test_ranks_fill_the_nodes_in_order_where_one_number_alone_fits() -> None:
    places = learn([Placement(rank=13, task=1), Placement(rank=3, task=0)], (), (), ("n1", "n2"))
    assert (places.ranks_per_node, places.node(9, None), places.rank("n2", 2)) == (8, "n2", 10)
    assert learn([Placement(rank=3)], (), (), ("n1", "n2", "n3")).ranks_per_node == 0


def test_a_list_of_tasks_is_read_and_a_wrong_one_is_not() -> None:
    assert tasks_of_srun("srun: error: n-b: tasks 4-5,7: Terminated") == ("n-b", (4, 5, 7))
    assert tasks_of_srun("srun: error: 0: task n1: Terminated") == ("", ())


@pytest.mark.parametrize(
    ("log", "cause", "node"),
    [
        ("slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2026-11-21T12:00:00 DUE TO NODE FAILURE, SEE LOG ***\n"
         "srun: error: Node failure on n2", Cause.NODE_FAILURE, "n2"),
        ("slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-11-21T12:00:00 DUE TO NODE FAILURE, SEE LOG ***\n"
         "slurmctld: error: Nodes n2 not responding, setting DOWN", Cause.NODE_FAILURE, "n2"),
        ("slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-11-21T12:00:00 DUE TO NODE FAILURE, SEE LOG ***",
         Cause.NODE_FAILURE, ""),
        ("slurmctld: requeue job JobId=9 due to failure of node n2", Cause.NODE_FAILURE, "n2"),
        ("slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-11-21T12:00:00 DUE TO JOB REQUEUE ***",
         Cause.CANCELLED, ""),
    ],
)  # fmt: skip
def test_the_node_that_failed_is_not_the_steps_first_one(tmp_path: Path, log: str, cause: Cause, node: str) -> None:
    said = verdict(tmp_path, log, ("n1", "n2"))
    assert (said.cause, said.node) == (cause, node)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ('SafetensorError: IoError(Os { code: 28, kind: StorageFull, message: "No space left" })', Cause.DISK_FULL),
        ("OSError: write failed: errno = 28, error message = 'No space left on device'", Cause.DISK_FULL),
        ('XlaRuntimeError: RESOURCE_EXHAUSTED: writing "x": No space left on device', Cause.DISK_FULL),
        ("SafetensorError: IoError(Os { code: 122, kind: FilesystemQuotaExceeded })", Cause.QUOTA),
        ("OSError: [Errno 108] Cannot send after transport endpoint shutdown", Cause.NETWORK),
        ("OSError: [Errno 116] Stale file handle", Cause.NETWORK),
        ("OSError: [Errno 107] Transport endpoint is not connected", Cause.NETWORK),
        ("OSError: [Errno 5] Input/output error", Cause.NETWORK),
        ("OSError: [Errno 5] Input/output error: '/pfs/data/part-3.bin'", Cause.DATA),
    ],
)  # fmt: skip
def test_what_the_machine_says_by_number_is_not_overruled_by_the_file_that_was_read(
    tmp_path: Path, error: str, cause: Cause
) -> None:
    frame = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/x/datasets/indexed_dataset.py", line 4, in read'
    )
    said = verdict(tmp_path, f"{frame}\n[rank1]: {error}")
    assert (said.cause, said.rank) == (cause, 1)
    assert said.user_fault is (cause is Cause.QUOTA)


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        ("Evaluating:  10%|#  | 480/4800", "Evaluating:  20%|## | 960/4800", Cause.USER_CODE),
        ("[rank0]: exporting to another format alone", "", Cause.USER_CODE),
        ("  5%|#  | 500/9000 [1:00<9:00, 7s/it]", "  5%|#  | 500/9000 [1:00<9:00, 7s/it]", Cause.HANG),
        ("[rank2]: evaluating alone", "", Cause.HANG),
    ],
)
def test_a_rank_that_does_other_work_while_the_others_wait_is_the_users_and_one_that_stands_still_hangs(
    tmp_path: Path, before: str, after: str, cause: Cause
) -> None:
    waiting = "\n".join(WAITED.format(rank) for rank in range(1, 8))
    said = verdict(tmp_path, f"step 1 loss 2\nstep 2 loss 2\n{before}\n{waiting}\n{after}", ("n1",))
    assert (said.cause, said.node, said.rank) == (cause, "n1", 0)
