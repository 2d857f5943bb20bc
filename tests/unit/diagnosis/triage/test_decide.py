"""One verdict from all facts: the rank that failed first, and lines that only followed."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from opsctl.diagnosis.triage.candidates import Candidate
from opsctl.diagnosis.triage.collective_timeouts import waited
from opsctl.diagnosis.triage.decide import _winner, decide, teardown
from opsctl.diagnosis.triage.findings import Facts, Finding, SlurmEnd, findings_of_line, words_of_failures
from opsctl.diagnosis.triage.rules import Fault, shipped_rules
from opsctl.run.attempts.verdict import Cause, Quote, StackGroup
from trainer.formats.attempt.attempt_records import HARD_END_STATUS, Failure, RankPlace
from trainer.formats.attempt.node_samples import NodeSample

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
RULES = shipped_rules()
RANKS = tuple(RankPlace(rank, f"n{rank // 4}", "", rank % 4) for rank in range(8))
LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:1: Connection reset by peer"
WAITED = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000)"


def lines(*said: str) -> tuple[Finding, ...]:
    found = (findings_of_line(RULES, line, "log", order, NOON) for order, line in enumerate(said))
    return tuple(one for one in found if one is not None)


def test_a_cause_wins_over_fifty_ranks_that_lost_their_peer_before_and_after_it() -> None:
    cascade = [f"[rank{rank}]: {LOST}" for rank in range(50)]
    said = decide(
        Facts(findings=lines(*cascade, "[rank60]: torch.OutOfMemoryError: CUDA out of memory.", *cascade)), RULES
    )
    assert (said.cause, said.rank) == (Cause.GPU_OOM, 60)
    assert said.cascade and "reset by peer" in said.cascade[0].text


def test_ranks_that_only_lost_peers_are_a_network_cause_with_little_confidence_and_no_place() -> None:
    said = decide(Facts(findings=lines(f"[rank1]: {LOST}", f"[rank2]: {LOST}"), ranks=RANKS), RULES)
    assert (said.cause, said.node, said.rank) == (Cause.NETWORK, "", None)
    assert said.confidence < 0.5


def test_a_rank_that_was_killed_and_nobody_says_why_is_no_cause_but_has_its_place() -> None:
    killed = Failure(rank=5, node="n1", signal=9, failed_at=NOON, message="killed by SIGKILL")
    said = decide(Facts(findings=lines(f"[rank1]: {LOST}"), failures=(killed,)), RULES)
    assert (said.cause, said.node, said.rank, said.confidence) == (Cause.UNKNOWN, "n1", 5, 0.0)


def test_a_source_line_of_a_traceback_is_no_evidence_whatever_error_it_names() -> None:
    frames = (
        '[default1]:  File "/opt/trainer/checkpoint/publish.py", line 117, in publish',
        "[default1]:    lost = from_first_rank(lambda: _publish(destination, name, whole), (CheckpointError,))",
        f"[default1]:{LOST}",
    )
    killed = Failure(rank=3, node="n0", signal=9, failed_at=NOON, message="killed by SIGKILL")
    said = decide(Facts(findings=lines(*frames), failures=(killed,), ranks=RANKS), RULES)
    assert (said.cause, said.node, said.rank) == (Cause.UNKNOWN, "n0", 3)


@pytest.mark.parametrize(
    ("code", "message", "cause"),
    [
        (7, "", Cause.USER_CODE),  # torchrun has no further message
        (1, "", Cause.NETWORK),  # any error ends like this, also a lost peer's
        (1, "exited with status 1", Cause.USER_CODE),  # our launcher, which has an error's words where there is one
        (1, f"followed another rank's failure: {LOST}", Cause.NETWORK),
        (137, "", Cause.NETWORK),
        (HARD_END_STATUS, "", Cause.NETWORK),  # the trainer's own way out where a peer is gone
        (HARD_END_STATUS, f"exited with status {HARD_END_STATUS}", Cause.NETWORK),
        (120, "", Cause.NETWORK),  # Python's exit code if it could not write the last of its output
    ],
)
def test_a_rank_that_left_by_itself_without_a_word_is_what_the_others_lost(
    code: int, message: str, cause: Cause
) -> None:
    left = Failure(rank=5, node="n1", exit_code=code, failed_at=NOON, message=message)
    said = decide(Facts(findings=lines(f"[rank1]: {LOST}"), failures=(left,), ranks=RANKS), RULES)
    assert (said.cause, said.user_fault) == (cause, cause is Cause.USER_CODE)
    if cause is Cause.USER_CODE:
        assert (said.node, said.rank) == ("n1", 5) and "exit" in said.todo[0]


@pytest.mark.parametrize(
    ("own", "code", "cause"),
    [
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1970, remote process exited", 17, Cause.NCCL),
        ("ncclRemoteError: A call failed possibly due to a network error.", 17, Cause.NCCL),
        (f"[Rank 5] {WAITED}", 3, Cause.NCCL),
        ("NCCL WARN NET/IB : Got completion from peer with status=12 opcode=0 len=0 vendor err 129", 17, Cause.NETWORK),
    ],
)
def test_a_rank_that_said_that_it_lost_a_peer_left_for_that_whatever_exit_code_it_chose(
    own: str, code: int, cause: Cause
) -> None:
    left = Failure(rank=5, node="n1", exit_code=code, failed_at=NOON)
    found = tuple(replace(one, node="n1") for one in lines(f"[rank5]: {own}"))
    said = decide(Facts(findings=found, failures=(left,), ranks=RANKS), RULES)
    assert (said.cause, said.node, said.rank, said.user_fault) == (cause, "n1", 5, False)
    survived = tuple(replace(one, is_before_progress=True) for one in found)
    assert decide(Facts(findings=survived, failures=(left,), ranks=RANKS), RULES).cause is Cause.USER_CODE


@pytest.mark.parametrize(
    ("asked_to_end", "cause", "rank"), [(frozenset({5}), Cause.UNKNOWN, 5), (frozenset(), Cause.NETWORK, None)]
)
def test_a_rank_that_sigterm_ended_before_anybody_ended_the_rest_is_what_the_others_lost(
    asked_to_end: frozenset[int], cause: Cause, rank: int | None
) -> None:
    told = Failure(rank=5, node="n1", signal=15, failed_at=NOON)
    facts = Facts(findings=lines(f"[rank1]: {LOST}"), failures=(told,), ranks=RANKS, asked_to_end=asked_to_end)
    said = decide(facts, RULES)
    assert (said.cause, said.rank) == (cause, rank)


def test_what_a_module_gave_up_with_is_the_cause_and_a_bare_exit_code_says_nothing() -> None:
    said = decide(Facts(findings=lines("[default1]:SystemExit: more than 5 % is padding, giving up")), RULES)
    assert said.cause is Cause.USER_CODE and "padding" in said.summary
    assert decide(Facts(findings=lines("[default1]:SystemExit: 1")), RULES).cause is Cause.UNKNOWN


def a_sample(share: float, **more: Any) -> NodeSample:
    return NodeSample(
        at=NOON - timedelta(seconds=2), node="n1", memory_bytes=1000, available_bytes=round(1000 * (1 - share)), **more
    )


@pytest.mark.parametrize(
    ("sample", "ended_by", "cause"),
    [
        (a_sample(0.99), 9, Cause.HOST_OOM),
        (a_sample(0.4, limit_bytes=100, limited_bytes=98), 9, Cause.HOST_OOM),
        (a_sample(0.4, shm_bytes=100, shm_used_bytes=100), 7, Cause.SHM),
        (a_sample(0.9), 9, Cause.UNKNOWN),
        (a_sample(0.99), 11, Cause.USER_CODE),
        (msgspec.structs.replace(a_sample(0.99), at=NOON - timedelta(minutes=5)), 9, Cause.UNKNOWN),
        (msgspec.structs.replace(a_sample(0.99), node="n0"), 9, Cause.UNKNOWN),
    ],
)
def test_a_node_that_was_full_right_before_explains_a_rank_that_a_signal_killed(
    sample: NodeSample, ended_by: int, cause: Cause
) -> None:
    killed = Failure(rank=5, node="n1", signal=ended_by, failed_at=NOON)
    said = decide(Facts(failures=(killed,), ranks=RANKS, samples=(sample,)), RULES)
    assert (said.cause, said.node, said.rank) == (cause, "n1", 5)


def test_the_oom_killers_word_explains_the_killed_rank() -> None:
    killed = Failure(rank=5, node="n1", signal=9, failed_at=NOON, message="killed by SIGKILL")
    event = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."
    said = decide(Facts(findings=lines(event), failures=(killed,)), RULES)
    assert (said.cause, said.node, said.rank) == (Cause.HOST_OOM, "n1", 5)


@pytest.mark.parametrize(
    "users",
    [
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "IndexError: index out of range in self",
    ],
)
def test_between_a_users_error_and_a_gpus_that_both_fit_the_node_is_not_blamed(users: str) -> None:
    said = decide(
        Facts(findings=lines(f"[rank3]: {users}", "[rank4]: RuntimeError: CUDA error: unspecified launch failure")),
        RULES,
    )
    assert (said.cause, said.user_fault) == (Cause.USER_CODE, True)


def test_a_users_error_that_is_nearly_as_likely_wins_over_a_node_that_is_not_certain() -> None:
    quote = Quote(source="log", text="x")
    node = Candidate(Cause.GPU_ERROR, Fault.NODE, 0.7, 0.7, "x", quote)
    user = Candidate(Cause.USER_CODE, Fault.USER, 0.69, 0.69, "x", quote)
    assert _winner([node, user]) is user
    certain = replace(node, score=0.9, weight=0.9)
    assert _winner([certain, replace(user, score=0.89)]) is certain


def test_the_rank_that_the_others_waited_for_is_the_one_that_hung() -> None:
    waiting = lines(*(f"[rank{rank}]:[E1121 12:00:01.5] [Rank {rank}] {WAITED}" for rank in range(8) if rank != 6))
    said = decide(Facts(findings=waiting, ranks=RANKS), RULES)
    assert (said.cause, said.node, said.rank) == (Cause.HANG, "n1", 6)


def test_where_all_ranks_waited_nobody_is_named() -> None:
    waiting = lines(*(f"[rank{rank}]:[E1121 12:00:01.5] [Rank {rank}] {WAITED}" for rank in range(8)))
    said = decide(Facts(findings=waiting, ranks=RANKS), RULES)
    assert (said.cause, said.node, said.rank) == (Cause.NCCL, "", None)


def test_the_odd_stack_of_a_hung_step_is_the_place() -> None:
    odd = StackGroup(ranks="3", count=1, nodes=("n0",), frames=("read (data.py:7)",), is_odd=True)
    said = decide(Facts(findings=lines(f"[rank1]: {WAITED}"), stacks=(odd,), ranks=RANKS), RULES)
    assert (said.cause, said.node, said.rank) == (Cause.HANG, "n0", 3)


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("TIMEOUT", Cause.TIME_LIMIT),
        ("PREEMPTED", Cause.PREEMPTED),
        ("NODE_FAIL", Cause.NODE_FAILURE),
        ("OUT_OF_MEMORY", Cause.HOST_OOM),
        ("CANCELLED", Cause.CANCELLED),
        ("FAILED", Cause.UNKNOWN),
    ],
)
def test_slurms_word_counts_where_no_line_says_more(state: str, cause: Cause) -> None:
    assert decide(Facts(slurm=SlurmEnd(state=state)), RULES).cause == cause


def test_what_failed_before_somebody_cancelled_it_is_the_cause_and_what_came_of_the_cancel_is_not() -> None:
    error, ended = (
        "[rank3]: KeyError: 'text'",
        "slurmstepd: error: *** STEP 7.0 ON n0 CANCELLED AT 2026-11-21T12:00:00 ***",
    )
    cancelled = SlurmEnd(state="CANCELLED")
    assert decide(Facts(findings=lines(error, ended), slurm=cancelled), RULES).cause == Cause.USER_CODE
    assert decide(Facts(findings=lines(ended, error), slurm=cancelled), RULES).cause == Cause.CANCELLED


def test_lines_that_end_what_is_left_are_told_as_teardown_and_never_as_the_cause() -> None:
    facts = Facts(findings=lines("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "))
    assert decide(facts, RULES).cause == Cause.UNKNOWN
    assert len(teardown(facts)) == 1


def test_a_rank_that_says_what_it_died_of_is_believed_before_a_warning_that_came_first() -> None:
    failed = Failure(
        rank=6, node="n1", exit_code=1, failed_at=NOON, message="OSError: [Errno 28] No space left on device"
    )
    own = words_of_failures(RULES, [(failed, "")], NOON)
    said = decide(
        Facts(findings=(*lines("[rank0]: ValueError: cannot tell the version"), *own), failures=(failed,)), RULES
    )
    assert (said.cause, said.node, said.rank, said.at) == (Cause.DISK_FULL, "n1", 6, NOON)


def test_of_two_nodes_that_say_the_same_the_earlier_one_is_told_by_one_clock_however_theirs_differ() -> None:
    late, early = NOON + timedelta(hours=3), NOON + timedelta(seconds=30)
    failures = (
        Failure(
            rank=5, node="n1", exit_code=1, failed_at=late, message="RuntimeError: CUDA error: uncorrectable ECC error"
        ),
        Failure(rank=0, node="n0", exit_code=1, failed_at=early, message=f"followed another rank's failure: {LOST}"),
    )
    own = tuple(words_of_failures(RULES, [(one, "") for one in failures], NOON))
    said = decide(Facts(findings=own, failures=failures, advances_s={"n1": 3 * 3600.0}), RULES)
    assert (said.cause, said.node, said.rank) == (Cause.GPU_ECC, "n1", 5)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: CUDA error: no CUDA-capable device is detected",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`",
        "RuntimeError: CUDA error: unspecified launch failure",
    ],
)
@pytest.mark.parametrize("said_by", [range(8), (3,)], ids=["all", "one"])
def test_no_node_is_blamed_for_what_a_wrong_setting_or_kernel_brings_too(text: str, said_by: Any) -> None:
    said = decide(Facts(findings=lines(*(f"[rank{rank}]: {text}" for rank in said_by)), ranks=RANKS), RULES)
    assert said.cause == Cause.USER_CODE
    assert said.node == "" or len(said_by) == 1


def test_what_all_ranks_of_two_nodes_say_of_their_gpus_is_none_of_one_nodes() -> None:
    text = "RuntimeError: CUDA error: CUDA driver initialization failed"
    said_by_all = lines(*(f"[rank{rank}]: {text}" for rank in range(8)))
    placed = tuple(replace(one, node=f"n{(one.rank or 0) // 4}") for one in said_by_all)
    said = decide(Facts(findings=placed, ranks=RANKS), RULES)
    assert (said.cause, said.node, said.rank) == (Cause.GPU_ERROR, "", None)
    on_one = decide(Facts(findings=placed[4:], ranks=RANKS), RULES)
    assert on_one.node == "n1"


def test_a_node_that_is_out_of_service_by_now_is_too_little_to_be_the_cause() -> None:
    later = SlurmEnd(state="FAILED", bad_nodes=(("n1", "maintenance"),))
    own = lines("[rank3]: KeyError: 'text'")
    assert decide(Facts(findings=own, slurm=later), RULES).cause == Cause.USER_CODE
    killed = Failure(rank=2, node="n0", signal=11, failed_at=NOON)
    assert decide(Facts(failures=(killed,), slurm=later, ranks=RANKS), RULES).cause == Cause.USER_CODE
    assert decide(Facts(slurm=later), RULES).confidence < 0.4


def test_one_rank_of_a_high_number_makes_no_list_of_all_below_it() -> None:
    far = [f"[rank{rank}]:[E1121 12:00:01.5] [Rank {rank}] {WAITED}" for rank in (0, 1, 9_999_999)]
    tracemalloc.start()
    try:
        found = waited(lines(*far), 0)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.missing == () and most_bytes < 1 << 20
