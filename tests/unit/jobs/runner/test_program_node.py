"""The process of a node, with real programs below it: what they get, how they are stopped, and that none is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from opsctl.core.tcp_ports import is_free
from opsctl.jobs.runner import program_node
from opsctl.jobs.runner.program_node import STEP_VARIABLE, ProgramStep

#: A program of several ranks that saves on SIGTERM and leaves, or does what its first argument says.
PROGRAM = """
import json, os, pathlib, signal, subprocess, sys, time
how, folder = sys.argv[1], pathlib.Path(sys.argv[2])
me = folder / f"rank-{os.environ['RANK']}"
def save(number, frame):
    me.with_suffix(".saved").write_text(repr(time.time()))
    sys.exit(0)
def save_half(number, frame):
    me.with_suffix(".half").write_text("PK")
    time.sleep(600)
signal.signal(signal.SIGTERM, {"deaf": signal.SIG_IGN, "hangs": save_half}.get(how, save))
if how == "floods":
    for number in range(200_000):
        print(os.environ["RANK"], number, "x" * 40)
    print("\\r" * 1000, "y" * 1_000_000, flush=True)
    sys.exit(0)
if how == "orphan":
    subprocess.Popen(["sleep", "601.5"], start_new_session=True)
if how == "hooked":
    from opsctl_hook import saved, should_stop
    while not should_stop(agree=lambda asked: asked or pathlib.Path(folder, "agreed").exists()):
        me.write_text("{}")
        time.sleep(0.02)
    pathlib.Path(folder, "agreed").touch()
    save_name = me.with_suffix(".saved")
    save_name.write_text(repr(time.time()))
    saved()
    time.sleep(600)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OPSCTL_CHECKPOINT")
me.write_text(json.dumps({"pid": os.getpid(), **{name: os.environ.get(name) for name in names}}))
until = time.monotonic() + (0.5 if how in ("ends", "orphan") else 60)
while time.monotonic() < until:
    if how == "dies" and os.environ["RANK"] == "1":
        print("step 7 of rank 1")
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "fails" and os.environ["RANK"] == "1":
        sys.exit(3)
    time.sleep(0.02)
"""

#: A launcher that stays after its ranks, as torchrun does while it waits for the launchers of other nodes.
STAYING = """
import os, subprocess, sys, time
for rank in ("0", "1"):
    subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, "RANK": rank, "LOCAL_RANK": rank})
time.sleep(602.5)
"""


class Running:
    """Processes of nodes, the program's folder, and the attempt's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.output = folder, folder / "output"
        self.attempt = self.output / "logs" / "attempts" / "7"
        self.attempt.mkdir(parents=True)
        self.program = folder / "train.py"
        self.program.write_text(PROGRAM)
        self.nodes: list[subprocess.Popen[str]] = []

    def step(self, how: str = "trains", nodes: int = 1, **changes: Any) -> ProgramStep:
        ports = [port for port in range(21_000 + os.getpid() % 1000 * 8, 32_000) if is_free(port)][:2]
        made = ProgramStep(
            command=(sys.executable, str(self.program), how, str(self.folder)),
            folder=str(self.folder),
            launch="ranks",
            nodes=nodes,
            ranks_per_node=2,
            master_address="127.0.0.1",
            master_port=ports[0],
            stop_port=ports[1],
            token="0123abcd",
            stop="SIGTERM",
            grace_s=20,
            kill_switch=str(self.output / "kill-switch"),
            stop_request=str(self.attempt / "stop-request"),
            output=str(self.output),
            attempt_folder=str(self.attempt),
            checkpoint="step-20",
        )
        return msgspec.structs.replace(made, **changes)

    def start(self, how: str, nodes: int = 1, **changes: Any) -> None:
        text = msgspec.json.encode(self.step(how, nodes, **changes)).decode()
        for number in range(nodes):
            own = {"SLURM_PROCID": str(number), "SLURMD_NODENAME": f"node{number + 1}", STEP_VARIABLE: text}
            command = [sys.executable, "-m", "opsctl.jobs.runner.program_node"]
            environment = {**os.environ, **own}
            environment.pop("PYTHONUNBUFFERED", None)
            self.nodes.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )

    def ranks(self, number: int) -> list[dict[str, str]]:
        """Wait for the program's ranks; what they have found in their environment."""
        files = [self.folder / f"rank-{rank}" for rank in range(number)]
        wait_until(lambda: all(one.exists() and one.stat().st_size for one in files))
        return [json.loads(one.read_text()) for one in files]

    def end(self) -> tuple[list[int], str]:
        """Wait for the nodes' ends: exit codes, and all that was printed."""
        printed = [node.communicate(timeout=60)[0] for node in self.nodes]
        return [node.returncode for node in self.nodes], "".join(printed)

    def record(self, name: str) -> Any:
        return json.loads((self.attempt / name).read_text())

    def left(self) -> list[psutil.Process]:
        """Return processes that have the program or its folder in their command, without the nodes'."""
        marks = {str(self.program), str(self.folder)}
        return [one for one in psutil.process_iter(["cmdline"]) if marks & set(one.info["cmdline"] or ())]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def wait_until(condition: Callable[[], bool], within_s: float = 40) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    for node in made.nodes:
        node.kill()
    for one in made.left():
        one.kill()


def test_ranks_get_torchruns_variables_and_their_places_are_recorded(running: Running) -> None:
    running.start("ends")
    first, second = running.ranks(2)
    assert (first["RANK"], second["RANK"], second["LOCAL_RANK"], second["WORLD_SIZE"]) == ("0", "1", "1", "2")
    assert first["MASTER_ADDR"] == "127.0.0.1" and first["OPSCTL_CHECKPOINT"] == "step-20"
    assert running.end() == ([0], "")
    assert [(one["rank"], one["node"], one["pid"]) for one in running.record("ranks-0.json")] == [
        (0, "node1", first["pid"]),
        (1, "node1", second["pid"]),
    ]
    assert running.record("clock-0.json")["node"] == "node1"


def test_a_node_that_outlives_its_attempt_writes_nothing_into_the_next_ones_folder(running: Running) -> None:
    running.start("trains")
    running.ranks(2)
    running.attempt.rename(running.attempt.with_name("7.1"))
    running.attempt.mkdir()
    os.kill(int(running.ranks(2)[1]["pid"]), signal.SIGKILL)
    assert running.end()[0] == [137] and [*running.attempt.iterdir()] == []


def test_the_kill_switch_has_all_ranks_save_and_leave(running: Running) -> None:
    running.start("trains")
    running.ranks(2)
    (running.output / "kill-switch").touch()
    codes, printed = running.end()
    assert codes == [0] and f"Detected kill switch at {running.output}/kill-switch" in printed
    assert sorted(one.name for one in running.folder.glob("*.saved")) == ["rank-0.saved", "rank-1.saved"]
    assert running.record("exit.json")["reason"] == running.record("leaving.json")["reason"] == "kill-switch"
    assert not running.left()


def test_a_request_reaches_all_nodes_and_their_ranks_get_the_signal_at_the_same_moment(running: Running) -> None:
    running.start("trains", nodes=2)
    assert [one["RANK"] for one in running.ranks(4)] == ["0", "1", "2", "3"]
    time.sleep(2)  # longer than the second node's process needs to connect
    (running.attempt / "stop-request").touch()
    assert running.end()[0] == [0, 0]
    moments = [float(one.read_text()) for one in running.folder.glob("*.saved")]
    assert len(moments) == 4 and max(moments) - min(moments) < 1.0
    assert running.record("exit.json")["reason"] == "stop-request"


def test_the_hooks_request_follows_no_link_in_the_shared_folder(running: Running) -> None:
    running.start("hooked", stop="hook", grace_s=2)
    running.ranks(2)
    target = running.folder / "another's"
    (running.attempt / "hook-stop").symlink_to(target)
    (running.output / "kill-switch").touch()
    running.end()
    assert not target.exists() and not (running.attempt / "hook-stop").is_symlink()


def test_a_program_that_ignores_the_signal_is_ended_after_the_grace_time(running: Running) -> None:
    running.start("deaf", grace_s=2)
    running.ranks(2)
    (running.output / "kill-switch").touch()
    codes, printed = running.end()
    assert codes == [0] and "has not left within 2 s" in printed
    assert not running.left()


def test_a_program_that_hangs_while_it_saves_is_ended_after_the_grace_time(running: Running) -> None:
    running.start("hangs", grace_s=2)
    running.ranks(2)
    (running.output / "kill-switch").touch()
    codes, printed = running.end()
    assert codes == [0] and "has not left within 2 s" in printed
    assert len(list(running.folder.glob("*.half"))) == 2 and not running.left()
    assert running.record("exit.json")["reason"] == "kill-switch"


def test_a_program_that_prints_very_much_loses_no_line(running: Running) -> None:
    running.start("floods")
    codes, printed = running.end()
    assert codes == [0] and printed.count("x" * 40) == 400_000
    assert printed.count("y") == 2_000_000


def test_a_program_that_ends_without_training_is_not_called_finished(running: Running) -> None:
    running.start("ends", command=(sys.executable, "-c", ""))
    assert running.end() == ([0], "")
    assert not (running.attempt / "exit.json").exists()


@pytest.mark.parametrize("launch", ["ranks", "torchrun"])
def test_words_with_blanks_and_quotes_reach_the_program_as_they_are(running: Running, launch: str) -> None:
    awkward = """it's "a" $HOME `x` \\ {nodes} {unknown} *"""
    program = running.folder / "my 'own' train.py"
    # One write for each line: torchrun's ranks are unbuffered, and print would write the line end by itself.
    words = "[*sys.argv[1:], os.environ['OPSCTL_CHECKPOINT']]"
    program.write_text(f"import json, os, sys; sys.stdout.write(json.dumps({words}) + chr(10))")
    start = sys.executable if launch == "ranks" else str(Path(sys.executable).with_name("torchrun"))
    running.start("", launch=launch, command=(start, str(program), awkward), checkpoint="a 'b' \"c\".pt")
    codes, printed = running.end()
    got = [json.loads(line) for line in printed.splitlines() if line.startswith("[")]
    assert codes == [0] and got == 2 * [[awkward.replace("{nodes}", "1"), "a 'b' \"c\".pt"]]


def test_a_program_with_the_hook_is_asked_by_it_and_ended_soon_after_its_save(running: Running) -> None:
    running.start("hooked", stop="hook", grace_s=3600)
    running.ranks(2)
    (running.output / "kill-switch").touch()
    assert running.end()[0] == [0]
    assert len(list(running.folder.glob("*.saved"))) == 2 and not running.left()
    assert running.record("leaving.json")["saves"] is True


def test_a_program_that_saves_on_no_request_is_ended_at_once(running: Running) -> None:
    running.start("trains", stop=None, grace_s=600)
    running.ranks(2)
    (running.output / "kill-switch").touch()
    codes, log = running.end()
    assert codes == [0] and "600" not in log  # no wait that was too short
    assert not list(running.folder.glob("*.saved")) and not running.left()


@pytest.mark.parametrize(("how", "code", "ended_by"), [("dies", 137, 9), ("fails", 3, None)])
def test_the_first_rank_to_fail_is_recorded_and_ends_the_others(
    running: Running, how: str, code: int, ended_by: int | None
) -> None:
    running.start(how)
    codes, _ = running.end()
    failure = running.record("failure-0.json")
    assert codes == [code]
    assert (failure["rank"], failure["node"], failure.get("signal")) == (1, "node1", ended_by)
    assert not running.left() and not (running.attempt / "exit.json").exists()


def test_lines_that_a_killed_rank_has_printed_are_in_the_log(running: Running) -> None:
    """Python keeps the lines of a program that does not print to a terminal, some kilobytes of them."""
    running.start("dies")
    assert "step 7 of rank 1" in running.end()[1]


def test_processes_that_a_program_leaves_behind_are_ended(running: Running) -> None:
    running.start("orphan")
    running.ranks(2)
    assert running.end()[0] == [0]
    assert not [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "601.5"]]


def test_the_end_of_the_step_ends_ranks_in_sessions_of_their_own(running: Running) -> None:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    running.start("deaf", launch="torchrun", command=(torchrun, str(running.program), "deaf", str(running.folder)))
    running.ranks(2)
    running.nodes[0].terminate()
    assert running.end()[0] == [143]
    assert not running.left() and not (running.attempt / "exit.json").exists()


def test_a_program_with_fewer_ranks_than_gpus_has_those_recorded_that_are_there(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans: list[float] = []
    clock = Clock()

    def ranks_below(_: psutil.Process) -> dict[int, psutil.Process]:
        scans.append(clock.now)
        return {0: psutil.Process()}

    node = program_node.NodeRun(running.step(ranks_per_node=4), 0, "node1", {}, _began_at=clock.now)
    monkeypatch.setattr(program_node, "ranks_below", ranks_below)
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", clock)
        for _ in range(1000):
            clock.now += 0.2
            node._find_ranks()
    assert [one["rank"] for one in running.record("ranks-0.json")] == [0]
    assert len(scans) < 700 and max(scans) < 1130


def test_a_command_that_does_not_exist_is_named(running: Running) -> None:
    running.start("ends", command=("no-such-launcher", "train.py"))
    codes, printed = running.end()
    assert codes == [127] and "node1: error: execve(): no-such-launcher: No such file" in printed


def test_torchruns_ranks_get_the_signal_and_their_launcher_does_not(running: Running) -> None:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    running.start("trains", launch="torchrun", command=(torchrun, str(running.program), "trains", str(running.folder)))
    running.ranks(2)
    (running.output / "kill-switch").touch()
    codes, printed = running.end()
    assert codes == [0] and "SignalException" not in printed
    assert len(list(running.folder.glob("*.saved"))) == 2
    assert len(running.record("ranks-0.json")) == 2 and not running.left()


def test_a_launcher_that_stays_after_its_ranks_have_saved_is_ended_before_the_grace_time(running: Running) -> None:
    words = (sys.executable, "-c", STAYING, str(running.program), "trains", str(running.folder))
    running.start("trains", launch="torchrun", command=words, grace_s=3600)
    running.ranks(2)
    wait_until((running.attempt / "ranks-0.json").exists)
    (running.output / "kill-switch").touch()
    assert running.end()[0] == [0]
    assert len(list(running.folder.glob("*.saved"))) == 2 and not running.left()


def test_the_first_rank_to_fail_below_torchrun_is_recorded(running: Running) -> None:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    running.start("trains", launch="torchrun", command=(torchrun, str(running.program), "trains", str(running.folder)))
    ranks = running.ranks(2)
    wait_until((running.attempt / "ranks-0.json").exists)
    os.kill(int(ranks[1]["pid"]), signal.SIGKILL)
    codes, _ = running.end()
    failure = running.record("failure-0.json")
    assert codes == [137] and (failure["rank"], failure["signal"]) == (1, 9)


def test_ranks_that_outlive_a_killed_torchrun_are_ended(running: Running) -> None:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    running.start("deaf", launch="torchrun", command=(torchrun, str(running.program), "deaf", str(running.folder)))
    ranks = running.ranks(2)
    launcher = psutil.Process(int(ranks[0]["pid"])).parent()
    assert launcher is not None
    os.kill(launcher.pid, signal.SIGKILL)
    assert running.end()[0] == [137]
    assert not running.left()
