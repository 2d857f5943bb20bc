"""Launching ranks for real: who failed first and how, whatever the others die of; nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool, Started
from tests.distributed.whole_training import TINY, write_corpus
from tests.free_port import free_port
from trainer.recipe.options import to_arguments

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 180.0
NEVER_S = 36_000


@dataclass
class Launched:
    """The launchers of one training on this machine, one per node."""

    folder: Path
    processes: list[subprocess.Popen[str]] | list[Started]

    def output_of(self, node: int) -> str:
        return (self.folder / f"node{node}.out").read_text()

    def wait_for(self, node: int, pattern: str) -> str:
        """Return the node's output when it contains the pattern."""
        deadline = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline:
            text = self.output_of(node)
            if re.search(pattern, text):
                return text
            assert self.processes[node].poll() is None, text
            time.sleep(0.05)
        raise AssertionError(f"{pattern!r} did not appear:\n{self.output_of(node)}")

    def statuses(self) -> list[int]:
        return [process.wait(timeout=LONGEST_S) for process in self.processes]

    def failure(self, node: int) -> dict[str, Any]:
        return json.loads((self.folder / f"failure-{node}.json").read_text())  # type: ignore[no-any-return]

    def pids(self) -> list[int]:
        return [
            rank["pid"] for file in sorted(self.folder.glob("ranks-*.json")) for rank in json.loads(file.read_text())
        ]


@contextlib.contextmanager
def launched(
    folder: Path, nodes: int, ranks: int, arguments: list[str], main: str | None = None, pool: Pool | None = None
) -> Iterator[Launched]:
    """Start a launcher per node, as `opsctl job run` does on as many machines; their /tmp is in the folder.

    pool: where the launchers are forked from a process that has imported torch; without it they are commands.
    """
    port = free_port()
    (folder / "tmp").mkdir()
    environment = {"TMPDIR": str(folder / "tmp")}
    started: Any = []
    for node in range(nodes):
        words = ["--nnodes", str(nodes), "--nproc-per-node", str(ranks), "--node-rank", str(node)]
        words += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        words += ["--attempt-folder", str(folder), "--node-name", f"x{node:02d}"]
        words += ["--main", main] if main else []
        words += ["--shutdown-s", str(NEVER_S)]  # torch would end what no signal ends; the launcher shall
        words += ["--", *arguments]
        output = folder / f"node{node}.out"
        if pool:
            started.append(pool.start(launcher, words, output=output, environment=environment))
        else:
            started.append(_as_a_command(words, output, environment))
    try:
        yield Launched(folder, started)
    finally:
        for process in started:
            process.kill()
            process.wait()


def launcher(words: list[str]) -> int:
    """Run one node's launcher in this forked process."""
    from trainer.launch import main

    sys.orig_argv = [sys.executable, "-u", "-m", "trainer.launch", *words]
    return main(words)


def _as_a_command(words: list[str], output: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "trainer.launch", *words]
    everything = {**os.environ, **environment}
    with output.open("w") as file:
        return subprocess.Popen(command, cwd=ROOT, env=everything, stdout=file, stderr=subprocess.STDOUT, text=True)


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + LONGEST_S
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still there: {[pid for pid in pids if is_alive(pid)]}"
        time.sleep(0.05)


SMALL_MAIN = "tests.distributed.launched_main"
GIVES_UP = "too much padding"


def test_a_rank_killed_with_9_is_named_whatever_the_others_die_of(pool: Pool, tmp_path: Path) -> None:
    """Two nodes of two: the victim's own launcher says -9, the other's says that its ranks followed."""
    with launched(tmp_path, 2, 2, ["kill", "3"], SMALL_MAIN, pool=pool) as nodes:
        assert nodes.statuses()[1] == 128 + signal.SIGKILL
        assert nodes.statuses()[0] != 0
        failure = nodes.failure(1)
        assert {key: failure[key] for key in ("rank", "local_rank", "node", "exit_code", "signal", "error_file")} == {
            "rank": 3,
            "local_rank": 1,
            "node": "x01",
            "exit_code": None,
            "signal": 9,
            "error_file": "",
        }
        assert failure["message"] == "killed by SIGKILL"
        assert "rank 3 (local rank 1 on x01) failed: killed by SIGKILL" in nodes.output_of(1)
        follower = nodes.failure(0)
        assert follower["node"] == "x00"
        assert follower["signal"] != signal.SIGKILL and follower["message"] != failure["message"]
        failed_at = datetime.fromisoformat(failure["failed_at"])
        assert failed_at.tzinfo is not None
        assert failed_at < datetime.fromisoformat(follower["failed_at"])
        wait_until_gone(nodes.pids())


def test_a_data_file_that_is_cut_short_under_a_training_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    prefix = write_corpus(tmp_path / "data")
    arguments = to_arguments({**TINY, "data_path": [prefix], "train_iters": 100_000, "eval_iters": 0})
    with launched(tmp_path, 1, 1, arguments) as nodes:
        nodes.wait_for(0, r"iteration +2/")
        os.truncate(f"{prefix}.bin", 0)
        assert nodes.statuses() == [128 + signal.SIGBUS]
        failure = nodes.failure(0)
    assert failure["signal"] == signal.SIGBUS
    assert failure["message"].startswith("killed by SIGBUS: ") and f"{prefix}.bin has 0 bytes" in failure["message"]
    assert failure["message"] in nodes.output_of(0)


def test_a_rank_that_raises_leaves_its_traceback_and_torchs_error_file(pool: Pool, tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    with launched(tmp_path, 1, 3, ["raise", "1"], SMALL_MAIN, pool=pool) as nodes:
        assert nodes.statuses() == [1]
        failure = nodes.failure(0)
        assert (failure["rank"], failure["exit_code"], failure["signal"]) == (1, 1, None)
        assert failure["message"] == "ValueError: odd token"
        assert Path(failure["error_file"]).is_relative_to(tmp_path / "x00")
        assert "odd token" in Path(failure["error_file"]).read_text()
        of_node = list((tmp_path / "x00").rglob("*"))  # readable for the group, and no other user's to put anything in
        assert {oct(path.stat().st_mode & 0o7777) for path in of_node if path.is_dir()} == {"0o2750"}
        assert {oct(path.stat().st_mode & 0o7777) for path in of_node if path.is_file()} == {"0o640", "0o660"}
        assert "[default1]:ValueError: odd token" in nodes.output_of(0)
        assert nodes.output_of(0).count("ValueError: odd token") == 2, "the rank's, and who failed"
        assert list((tmp_path / "tmp").iterdir()) == []


def test_a_module_that_gives_up_with_a_sentence_leaves_it_as_its_ranks_words(pool: Pool, tmp_path: Path) -> None:
    with launched(tmp_path, 1, 2, ["give up", "1"], SMALL_MAIN, pool=pool) as nodes:
        assert nodes.statuses() == [1]
        failure = nodes.failure(0)
        assert (failure["rank"], failure["exit_code"]) == (1, 1)
        assert failure["message"] == f"SystemExit: {GIVES_UP}"
        assert f"[default1]:SystemExit: {GIVES_UP}" in nodes.output_of(0)
        assert f'raise SystemExit("{GIVES_UP}")' in nodes.output_of(0), "and where"


def test_ranks_are_numbered_in_node_order_and_known_before_they_run(pool: Pool, tmp_path: Path) -> None:
    with launched(tmp_path, 2, 2, ["end"], SMALL_MAIN, pool=pool) as nodes:
        assert nodes.statuses() == [0, 0]
        ranks = [rank for node in (0, 1) for rank in json.loads((tmp_path / f"ranks-{node}.json").read_text())]
        assert [(one["rank"], one["local_rank"], one["node"]) for one in ranks] == [
            (0, 0, "x00"),
            (1, 1, "x00"),
            (2, 0, "x01"),
            (3, 1, "x01"),
        ]
        for one in ranks:
            said = f"[default{one['local_rank']}]:rank {one['rank']} of 4 says end, pid {one['pid']}"
            assert said in nodes.output_of(one["rank"] // 2)
        assert not list(tmp_path.glob("failure-*"))


def test_the_launcher_is_deaf_to_usr1_and_ends_once_at_repeated_sigterm(pool: Pool, tmp_path: Path) -> None:
    with launched(tmp_path, 1, 2, ["run"], SMALL_MAIN, pool=pool) as nodes:
        nodes.wait_for(0, "rank 0 of 2(.|\n)*rank 1 of 2|rank 1 of 2(.|\n)*rank 0 of 2")
        (process,) = nodes.processes
        process.send_signal(signal.SIGUSR1)
        for pid in nodes.pids():
            os.kill(pid, signal.SIGUSR1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        for _ in range(5):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        assert nodes.statuses() == [128 + signal.SIGTERM]
        assert not list(tmp_path.glob("failure-*")), "no rank failed: the launch was ended from outside"
        wait_until_gone(nodes.pids())


def test_ranks_that_end_well_after_the_first_launcher_has_gone_leave_no_traceback(pool: Pool, tmp_path: Path) -> None:
    """Ended before the others, it takes along the store through which torch's launchers wait for each other."""
    with launched(tmp_path, 2, 1, ["end after", str(tmp_path / "gone")], SMALL_MAIN, pool=pool) as nodes:
        nodes.wait_for(1, "rank 1 of 2 waits")
        first, second = nodes.processes
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=LONGEST_S) == 128 + signal.SIGTERM
        (tmp_path / "gone").touch()
        assert second.wait(timeout=LONGEST_S) == 0
        said = [line.partition(", pid")[0] for node in (0, 1) for line in nodes.output_of(node).splitlines()]
        assert said == [
            *("[default0]:rank 0 of 2 says end after", "x00: ended by SIGTERM"),
            *("[default0]:rank 1 of 2 says end after", "[default0]:rank 1 of 2 waits"),
        ]
        assert list((tmp_path / "tmp").iterdir()) == []


def test_a_launcher_killed_with_9_takes_its_ranks_along(pool: Pool, tmp_path: Path) -> None:
    with launched(tmp_path, 1, 2, ["run"], SMALL_MAIN, pool=pool) as nodes:
        nodes.wait_for(0, "rank 0 of 2(.|\n)*rank 1 of 2|rank 1 of 2(.|\n)*rank 0 of 2")
        pids = nodes.pids()
        nodes.processes[0].kill()
        wait_until_gone(pids)


def test_a_rank_killed_while_training_ends_the_step_and_the_next_launch_resumes(pool: Pool, tmp_path: Path) -> None:
    """The real trainer over two nodes: TP 2 x PP 1 x DP 2."""
    corpus = write_corpus(tmp_path)
    options = {**TINY, "data_path": [corpus], "tensor_model_parallel_size": 2, "train_iters": 100_000}
    options |= {
        "save": str(tmp_path / "ck"),
        "load": str(tmp_path / "ck"),
        "save_interval": 5,
        "lr_decay_style": "constant",
    }
    options |= {"exit_report_path": str(tmp_path / "exit.json"), "stop_request_path": str(tmp_path / "stop-request")}
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with launched(first, 2, 2, to_arguments(options), pool=pool) as nodes:
        nodes.wait_for(0, "successfully saved checkpoint at iteration +5 ")
        victim = json.loads((first / "ranks-1.json").read_text())[0]
        os.kill(victim["pid"], signal.SIGKILL)
        assert all(nodes.statuses())
        failure = nodes.failure(1)
        assert (failure["rank"], failure["node"], failure["signal"]) == (2, "x01", 9)
        wait_until_gone(nodes.pids())
    assert not (tmp_path / "exit.json").exists()

    with launched(second, 2, 2, to_arguments(options), pool=pool) as nodes:
        text = nodes.wait_for(1, r"(?m)^\[default1\]: iteration +\d+/ +100000 \|")
        resumed_at = int(re.search(r"iteration +(\d+)/", text)[1])  # type: ignore[index]
        assert resumed_at % 5 == 1 and resumed_at > 5
        (tmp_path / "stop-request").touch()
        assert nodes.statuses() == [0, 0]
    report = json.loads((tmp_path / "exit.json").read_text())
    assert report["reason"] == "stop-request"
    assert (tmp_path / "ck" / "latest").read_text() == f"global_step{report['iteration']}"


def test_a_refusal_is_one_line_and_status_2_through_the_launcher(pool: Pool, tmp_path: Path) -> None:
    options = {**TINY, "data_path": [str(tmp_path / "absent")], "train_iters": 2, "num_layers": 3}
    with launched(tmp_path, 1, 2, to_arguments({**options, "pipeline_model_parallel_size": 2}), pool=pool) as nodes:
        assert nodes.statuses() == [2]
        complaint = "trainer: --num-layers 3 is not divisible by --pipeline-model-parallel-size 2: "
        complaint += "list the blocks of each stage, --pp-partition-method 2,1"
        assert nodes.output_of(0).splitlines() == [f"[default0]:{complaint}"]
        assert complaint.endswith(nodes.failure(0)["message"])


DISTURBED_MAIN = "tests.distributed.disturbed_training"


def test_ranks_that_no_signal_reaches_end_once_one_has_refused(pool: Pool, tmp_path: Path) -> None:
    options = {**TINY, "data_path": [write_corpus(tmp_path)], "train_iters": 2}
    with launched(tmp_path, 1, 2, ["deaf", *to_arguments(options)], DISTURBED_MAIN, pool=pool) as nodes:
        assert nodes.statuses() == [2]
        text = nodes.output_of(0)
        assert "Traceback" not in text
        assert nodes.failure(0)["rank"] == 1
        assert nodes.failure(0)["message"] == "corpus gone"
        wait_until_gone(nodes.pids())


def test_a_rank_that_hangs_in_its_last_save_ends_with_a_line_and_frees_the_node(pool: Pool, tmp_path: Path) -> None:
    options = {**TINY, "data_path": [write_corpus(tmp_path)], "train_iters": 2, "save": str(tmp_path / "ck")}
    options |= {"exit_margin_in_mins": 0.01}
    with launched(tmp_path, 1, 2, ["save hangs", *to_arguments(options)], DISTURBED_MAIN, pool=pool) as nodes:
        assert nodes.statuses() == [70]
        message = nodes.failure(0)["message"]
        assert "iteration 2" in message and message in nodes.output_of(0)
        wait_until_gone(nodes.pids())
    assert not (tmp_path / "ck" / "latest").exists()


@pytest.mark.parametrize("launcher", ["alone", pytest.param("torchrun", marks=pytest.mark.nightly)])
def test_the_trainer_runs_without_our_launcher(tmp_path: Path, launcher: str) -> None:
    corpus = write_corpus(tmp_path)
    words = to_arguments(
        {**TINY, "data_path": [corpus], "train_iters": 2, "exit_report_path": str(tmp_path / "exit.json")}
    )
    start = [sys.executable, "-m"]
    if launcher == "torchrun":
        start += ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*start, "trainer.pretrain_gpt", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"(?m)^ iteration +\d/ +2 \|", done.stdout)) == 2
    assert json.loads((tmp_path / "exit.json").read_text())["reason"] == "finished"


def test_a_launcher_on_standby_runs_what_stdin_names_and_leaves_where_it_is_not_named(tmp_path: Path) -> None:
    common = ["--nnodes", "1", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--main", SMALL_MAIN]
    old = [*common, "--master-port", "1", "--attempt-folder", str(tmp_path / "old"), "--", "kill"]
    words = [*common, "--master-port", str(free_port()), "--attempt-folder", str(tmp_path / "new"), "--", "end"]
    start = json.dumps({"nodes": ["x01"], "words": words, "variables": {"OF_THE_RESTART": "1"}})
    started = []
    for node, line in (("x00", start), ("x01", start), ("x02", "")):
        command = [sys.executable, "-m", "trainer.launch", "--standby", "--node-rank", "0", "--node-name", node, *old]
        pipe, own = subprocess.PIPE, {**os.environ, "TMPDIR": str(tmp_path)}
        one = subprocess.Popen(command, cwd=ROOT, env=own, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        assert one.stdin is not None
        one.stdin.write(f"{line}\n" if line else "")
        one.stdin.close()
        started.append(one)
    outputs = [one.stdout.read() for one in started if one.stdout is not None]
    assert [one.wait(LONGEST_S) for one in started] == [0, 0, 0], outputs
    assert "rank 0 of 1 says end" in outputs[1] and outputs[0] == outputs[2] == ""
    assert (tmp_path / "new" / "ranks-0.json").exists() and not (tmp_path / "old").exists()
