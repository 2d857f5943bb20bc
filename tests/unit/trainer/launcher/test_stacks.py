"""Asking real processes for their stacks: ones that work, hang in C, are stopped, or are no one's to signal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainer.formats.attempt.error_file import RankStack, joined
from trainer.launcher.stack_dump import find_spy

#: PyDLL keeps the interpreter's lock, and who locks a mutex twice waits for ever.
HANG_IN_C = "import ctypes; c = ctypes.PyDLL(None); m = ctypes.create_string_buffer(64); " + 2 * (
    "c.pthread_mutex_lock(m); "
)
#: Another one in each process that tests.
JOB = str(os.getpid())
WORK = "def innermost():\n    while True: pass\ninnermost()"
WAIT = "import time; time.sleep(600)"
FORK = "import os, time; os.fork(); time.sleep(600)"


@pytest.fixture
def ranks() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(rank: int, what: str, job: str = JOB, listens: bool = True) -> subprocess.Popen[bytes]:
        listen = f"from trainer.launcher.stacks import listen; listen({rank})\n" if listens else ""
        code = f"{listen}print('up', flush=True)\n{what}"
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            env={**os.environ, "SLURM_JOB_ID": job, "SLURMD_NODENAME": "x1", "RANK": str(rank), "LOCAL_RANK": "0"},
            start_new_session=True,
        )
        started.append(child)
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        return child

    yield start
    for child in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


#: As on a node where py-spy is not installed, or may not read.
UNSPIED = "import sys, trainer.launcher.stacks as s; s.spied = lambda *_: {}; sys.exit(s.main(sys.argv[1:]))"


def stacks(wait_s: float = 5, spied: bool = False) -> tuple[int, list[dict[str, Any]]]:
    program = ["-m", "trainer.launcher.stacks"] if spied else ["-c", UNSPIED]
    done = subprocess.run(
        [sys.executable, *program, "--wait-s", str(wait_s)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SLURM_JOB_ID": JOB, "SLURMD_NODENAME": "x1"},
        cwd=Path(__file__).resolve().parents[4],
    )
    assert all(len(line) < 1024 for line in done.stdout.splitlines()), "srun mixes longer ones of several nodes"
    found = joined(msgspec.json.decode(line, type=RankStack) for line in done.stdout.splitlines())
    return done.returncode, [msgspec.structs.asdict(one) for one in found]


def test_every_rank_tells_where_it_is_also_one_that_hangs_in_c(
    ranks: Callable[..., subprocess.Popen[bytes]],
) -> None:
    innermost = "def innermost():\n    import time; time.sleep(600)\ninnermost()"
    children = [ranks(2, innermost), ranks(10, HANG_IN_C), ranks(0, WAIT)]
    code, found = stacks()
    assert code == 0 and [one["rank"] for one in found] == [0, 2, 10]
    assert [one["pid"] for one in found] == [children[2].pid, children[0].pid, children[1].pid]
    assert "in innermost" in found[1]["text"]
    assert all('File "<string>", line' in one["text"] for one in found)
    again = stacks()[1]
    assert again[2]["text"] == found[2]["text"], "each time only what is new"
    assert all(child.poll() is None for child in children)


def test_a_stopped_rank_is_named_with_its_state_and_keeps_nobody_waiting_for_ever(
    ranks: Callable[..., subprocess.Popen[bytes]],
) -> None:
    stopped, awake = ranks(0, WAIT), ranks(1, WAIT)
    os.kill(stopped.pid, signal.SIGSTOP)
    began = time.monotonic()
    _, found = stacks(wait_s=0.5)
    assert time.monotonic() - began < 20
    assert [(one["rank"], one["state"], bool(one["text"])) for one in found] == [(0, "T", False), (1, "S", True)]
    assert awake.poll() is None


@pytest.mark.parametrize(
    "spied", [False, pytest.param(True, marks=pytest.mark.skipif(find_spy(0) is None, reason="no py-spy"))]
)
def test_ranks_of_another_program_are_only_read_and_never_signalled(
    ranks: Callable[..., subprocess.Popen[bytes]], spied: bool
) -> None:
    children = [ranks(1, FORK, listens=False), ranks(0, WAIT, listens=False)]
    code, found = stacks(spied=spied)
    assert code == 0 and [(one["rank"], one["pid"]) for one in found] == [(0, children[1].pid), (1, children[0].pid)]
    assert [bool(one["text"]) for one in found] == [spied, spied]
    assert all(child.poll() is None for child in children)


@pytest.mark.skipif(find_spy(0) is None, reason="py-spy is not installed")
def test_where_py_spy_is_a_stopped_rank_and_one_that_hangs_in_c_are_read_from_outside(
    ranks: Callable[..., subprocess.Popen[bytes]],
) -> None:
    children = [ranks(0, WORK), ranks(1, HANG_IN_C), ranks(2, WAIT)]
    os.kill(children[2].pid, signal.SIGSTOP)
    began = time.monotonic()
    code, found = stacks(spied=True)
    assert code == 0 and time.monotonic() - began < 20
    assert [one["state"] for one in found] == ["R", "S", "T"]
    assert "in innermost\n" in found[0]["text"] and "in <module>\n" in found[1]["text"]
    assert "in <module>\n" in found[2]["text"]
    assert all(child.poll() is None for child in children)
    status = Path(f"/proc/{children[2].pid}/stat").read_text()
    assert status.rpartition(")")[2].split()[0] == "T", "one that was stopped stays so"


def test_only_ranks_of_this_job_are_signalled_and_what_they_forked_is_none(
    ranks: Callable[..., subprocess.Popen[bytes]],
) -> None:
    others = ranks(0, WAIT, job="8"), ranks(1, WAIT, listens=False)
    family = ranks(3, FORK)
    _, found = stacks()
    assert [(one["rank"], one["pid"]) for one in found] == [(3, family.pid)]
    assert all(child.poll() is None for child in others), "the signal ends who does not listen for it"


def test_a_node_without_ranks_says_so_also_where_a_launcher_set_variables_for_the_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert stacks(wait_s=0.1) == (1, [])
