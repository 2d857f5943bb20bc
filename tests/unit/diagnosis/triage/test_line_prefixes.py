"""Tests of prefixes of lines, and of further forms in which a log names cause and node."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.diagnosis.triage.decide import decide
from opsctl.diagnosis.triage.line_prefixes import usual_line
from opsctl.diagnosis.triage.lines import read_line
from opsctl.diagnosis.triage.log_header import read_opening
from opsctl.diagnosis.triage.log_part import LogPart
from opsctl.diagnosis.triage.read_evidence import read_log
from opsctl.diagnosis.triage.rules import shipped_rules
from opsctl.run.attempts.verdict import Cause, Verdict

AT = "2026-09-01 12:00:05"
ERROR = "ValueError: a shape does not fit"
RANKS = "n1: ranks 0-7\nn2: ranks 8-15\nstep 1 loss 2.0\nstep 2 loss 2.0\n"
NODES = "nodes: n1 n2\nstep 1 loss 2.0\nstep 2 loss 2.0\n"
BLOCK = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-09-01_12:00:06
  host      : {host}
  rank      : {rank} (local_rank: {local})
  exitcode  : {code} (pid: 51)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"""


def verdict(tmp_path: Path, log: str) -> Verdict:
    (tmp_path / "log").write_text(log + "\n")
    return decide(read_log(LogPart(tmp_path / "log"), shipped_rules(), 20), shipped_rules())


def as_json(**fields: object) -> str:
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        (as_json(time=AT, host="n2", rank=9, level="ERROR", message=ERROR), 9),
        (as_json(ts=AT, msg="failed", hostname="n2", exc_info=f"Traceback:\n  File x\n{ERROR}"), None),
        (as_json(log=f"{ERROR}\n", kubernetes={"host": "n2", "pod_name": "w"}), None),
        (f"{AT}.123 | ERROR    | train.loop:fit:88 - [n2] {ERROR}", None),
        (f"ERROR | train.loop:<module>:88 - [n2] [rank9] {ERROR}", 9),
        (f"[rank 9 | n2] {ERROR}", 9),
        (f"[n2|rank9] {ERROR}", 9),
        (f"[n2, rank 9]: {ERROR}", 9),
        (f"[host=n2 rank=9] {ERROR}", 9),
        (f"[rank9/n2] {ERROR}", 9),
        (f"2026-09-01T12:00:05.123456789Z [{AT}] n2: {ERROR}", None),
        (f"2026-09-01T12:00:05.123456789Z {AT},123 [rank9]: {ERROR}", 9),
        (f"[pod/n2/trainer] 2026-09-01T12:00:05.123456789Z [rank9]: {ERROR}", 9),
        (f"2026-09-01T12:00:05.123Z stderr F [rank9]: {ERROR}", 9),
        (f"[rank: 9] {ERROR}", 9),
        (f"[Rank 9/16] {ERROR}", 9),
        (f"[RANK=9] {ERROR}", 9),
        (f"n2 | [rank9]: {ERROR}", 9),
        (f"trainer n2 [rank9]: {ERROR}", 9),
        (f"[{AT},123][n2][rank9][ERROR] {ERROR}", 9),
        (f"[n2][rank 9] {ERROR}", 9),
        (f"(n2) {ERROR}", None),
        (f"n2> {ERROR}", None),
        (f"[1,9]<stderr>: {ERROR}", 9),
        (f"[NeMo E {AT} nemo_logging:405 rank:9] {ERROR}", 9),
        (f"E0901 12:00:05.123456 51 train.py:88] [n2] {ERROR}", None),
        (f"n2: [{AT},123] [ERROR] [train.py:88:fit] [Rank 9] {ERROR}", 9),
        (f"n2:9: {ERROR}", None),
        (f"{AT},123 n2 root ERROR {ERROR}", None),
        (f"[{AT}] [n2:51] [ERROR] {ERROR}", None),
        (f"{AT} ERROR n2 rank=9 {ERROR}", 9),
        (f'node=n2 rank=9 level=error msg="{ERROR}"', 9),
        (f"(RayTrainWorker pid=51, ip=n2) {ERROR}", None),
        (f"(TrainWorker pid=51) [rank9]: {ERROR}", 9),
        (f"<n2:9> {ERROR}", None),
        (f"[prterun-n1-44@1,9]<stderr>: {ERROR}", 9),
        (f"[1,mpirank:9,n2]<stderr>: {ERROR}", 9),
        (f"9@n2 | {ERROR}", 9),
        (f"[9/16] {ERROR}", 9),
        (f'ts={AT} host=n2 level=error msg="{ERROR}"', None),
    ],
)
def test_an_error_is_found_behind_whatever_stands_in_front_of_it(tmp_path: Path, line: str, rank: int | None) -> None:
    said = verdict(tmp_path, RANKS + line)
    assert (said.cause, said.node) == (Cause.USER_CODE, "n2")
    assert rank is None or said.rank == rank


@pytest.mark.parametrize(
    "line",
    [
        f"[{AT}] [WARNING] [n2] {ERROR}",
        f"[NeMo W {AT} nemo_logging:405 rank:9] {ERROR}",
        f"tried again on n2 after {ERROR}",
        f"{AT} INFO n2 {ERROR}",
    ],
)
def test_an_error_that_is_only_told_of_is_none_of_the_trainings(tmp_path: Path, line: str) -> None:
    assert verdict(tmp_path, RANKS + line).cause == Cause.UNKNOWN


CRASH = "line 3:  4711 Segmentation fault      (core dumped) python train.py"
LOST = "[rank0]: ncclRemoteError: A call failed"
NO_DEVICE = "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error"
NOT_DIVIDED = "AssertionError: batch 12 does not divide by 8"
WAITED = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, Timeout(ms)=1800000) "
    "ran for 1800005 milliseconds"
)
KILLED_9 = BLOCK.format(host="n2", rank=9, local=1, code=-9)
FAILED_9 = BLOCK.format(host="n2-ib0", rank=9, local=1, code=1)
NUMPY = """\
[rank9]: Traceback (most recent call last):
[rank9]:   File "/a/b/c/torch/utils/data/_utils/fetch.py", line 5, in f
[rank9]:   File "/a/b/c/numpy/lib/npyio.py", line 5, in load
[rank9]: zipfile.BadZipFile: File is not a zip file"""
ARGUMENTS = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/a/b/megatron/training/arguments.py", line 5, in v
[rank{0}]: AssertionError: checkpointing needs a number of layers
"""
SYSLOGD = """\
Message from syslogd@n2 at Mar 24 02:09:51 ...
 kernel:[88.1] Out of memory: Killed process 4 (python) total-vm:4kB"""
CLOSED = "{} [5] misc/socket.cc:46 NCCL WARN socketProgress: Connection closed by remote peer n2<52905>\n"
REFUSED = "n{}:1:2 [0] socket.h:403 NCCL WARN Connect to 10.0.0.{}<48113> failed : {}\n"
DEEPSPEED = (
    "n2: [2026-09-01 12:00:05,1] [ERROR] [launch.py:321:sigkill_handler] ['python'] exits with return code = -9\n"
)
OOM_OF_A_STEP = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."
)
OOM_OF_RAY = "(raylet, ip=n2) A worker died or was killed. Worker exit detail: killed due to memory pressure"
OF_A_WORKER = "[rank9]: {} in DataLoader worker process 2."


@pytest.mark.parametrize(
    ("log", "cause", "node"),
    [
        (f"{NODES}[n2] bash: {CRASH}", Cause.USER_CODE, "n2"),
        (f"{NODES}n2: run.sh: {CRASH}", Cause.USER_CODE, "n2"),
        (f"{NODES}agent on node rank 1 died", Cause.UNKNOWN, "n2"),
        (f"nodes: n1 n2\n{SYSLOGD}", Cause.HOST_OOM, "n2"),
        (f"[rank9]: {ERROR}\n{FAILED_9}", Cause.USER_CODE, "n2-ib0"),
        (f"{NODES}[rank9]: {ERROR}\n{FAILED_9}", Cause.USER_CODE, "n2"),
        (f"n-a1: start\nn-a2.ex.org: [rank9]: {ERROR}", Cause.USER_CODE, "n-a2"),
        (f"{RANKS}[2026-09-01 12:30:05] {WAITED}\n[{AT}] [rank9]: {ERROR}", Cause.USER_CODE, "n2"),
        (NODES + "\n".join(f"n{at}: {NOT_DIVIDED}" for at in (1, 1, 2, 2)), Cause.USER_CODE, ""),
        (f"{NODES}n2: {NOT_DIVIDED}\nn1: {LOST}", Cause.USER_CODE, "n2"),
        (RANKS + OF_A_WORKER.format("_pickle.UnpicklingError: Caught UnpicklingError"), Cause.DATA, "n2"),
        (RANKS + OF_A_WORKER.format("zipfile.BadZipFile: Caught BadZipFile"), Cause.DATA, "n2"),
        (RANKS + NUMPY, Cause.DATA, "n2"),
        (
            f"{RANKS}[RankMonitorServer:9] Did not get subsequent heartbeat. Waited 600.00 seconds.\n{KILLED_9}",
            Cause.HANG,
            "n2",
        ),
        (f"{RANKS}Rank 9 has sent no heartbeat for 900 s, killing it\n{KILLED_9}", Cause.HANG, "n2"),
        (f"nodes: n1 n2\n{ARGUMENTS.format(0)}{ARGUMENTS.format(1)}", Cause.USER_CODE, ""),
        (f"{RANKS}ERROR:composer.cli.launcher:Rank 9 crashed with exit code -7.\n{LOST}", Cause.UNKNOWN, "n2"),
        (f"Hostname: n7\nWorld size 2, rank 0\n{NO_DEVICE}", Cause.GPU_LOST, "n7"),
        (f"Hostname: n7\nworld_size: 32\n{NO_DEVICE}", Cause.GPU_LOST, ""),
        (f"Hostname: n7\nnum_nodes: 2\n{NO_DEVICE}", Cause.GPU_LOST, ""),
        (f"nodes: n1 n2 n3\n{CLOSED.format('n2')}{CLOSED.format('n1')}{CLOSED.format('n3')}", Cause.NETWORK, "n2"),
        (NODES + REFUSED.format(2, 1, "Network is unreachable") + REFUSED.format(1, 2, "refused"), Cause.NETWORK, ""),
        (
            f"{NODES}[n2:04711] *** Process received signal\n[n2:04711] Signal: Segmentation fault (11)",
            Cause.USER_CODE,
            "n2",
        ),
        (f"{NODES}{DEEPSPEED}n1: {LOST}", Cause.UNKNOWN, "n2"),
        (f"{NODES}n2: container trainer: OOMKilled, exit code 137", Cause.HOST_OOM, "n2"),
        (
            f"{RANKS}[rank9]: XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.",
            Cause.GPU_OOM,
            "n2",
        ),
        (f"{NODES}{OOM_OF_A_STEP}\nsrun: error: n2: task 1: Out Of Memory", Cause.HOST_OOM, "n2"),
        (f"{NODES}{OOM_OF_RAY}", Cause.HOST_OOM, "n2"),
        (
            f"{NODES}Sep  1 12:00:05 n2 kernel: NVRM: Xid (PCI:0000:bb:00): 79, pid=51, GPU is gone",
            Cause.GPU_LOST,
            "n2",
        ),
    ],
)
def test_a_log_tells_cause_and_node_in_many_forms(tmp_path: Path, log: str, cause: Cause, node: str) -> None:
    said = verdict(tmp_path, log)
    assert (said.cause, said.node) == (cause, node)


LOSS = " 10 loss 2.0\n"


@pytest.mark.parametrize(
    ("front", "names"),
    [
        ("{}: ", ("frodo", "bilbo")),
        ("[{}] ", ("mi-a", "mi-b")),
        ("{} ", ("w-0", "w-1")),
        ("ERROR [{}] ", ("pz1", "pz2")),
        ("2026-09-01 12:00:05.310 [22/train/70 (pid 51)] [{}] ", ("w-1", "w-2")),
        ("2026-09-01 12:00:05,001|ERROR|{}|train|", ("s5", "s6")),
        ("{}  | ", ("w-1", "w-2")),
        ("{}.example.org - ", ("l1", "l2")),
    ],
)
def test_names_at_one_place_in_front_of_the_same_words_are_the_nodes(
    tmp_path: Path, front: str, names: tuple[str, str]
) -> None:
    steps = "".join(f"{front.format(name)}step{LOSS}" for name in names * 2)
    said = verdict(tmp_path, f"{steps}{front.format(names[1])}{ERROR}\n{front.format(names[0])}{LOST}")
    assert (said.cause, said.node) == (Cause.USER_CODE, names[1] + front[2 : front.find(" ")] * ("org" in front))


@pytest.mark.parametrize("names", [("loader", "model"), ("ckpt-1", "ckpt-2"), ("default1", "default2")])
def test_names_that_no_node_has_are_no_nodes_in_front_of_lines(names: tuple[str, str]) -> None:
    lines = [f"{name}: {name} is ready, step 1" if name.isalpha() else f"{name}: ready" for name in names * 3]
    assert read_opening(lines).fronts.hosts == frozenset()


@pytest.mark.nightly
@pytest.mark.parametrize("line", ["[n1] " * 400, "1:2 " * 500, "a=" * 1000, "{" * 2000, "n1:" * 700, '{"msg": ' * 250])
def test_a_line_of_nothing_but_fields_is_read_in_milliseconds(line: str) -> None:
    begun = time.process_time()
    for _ in range(200):
        read_line(usual_line(frozenset({"n1", "n2"}))(line), datetime(2026, 9, 1, tzinfo=UTC))
    assert time.process_time() - begun < 5
