"""Real trackers, of seconds: codecarbon with a given power, in processes that are ended in every way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainer.formats.attempt.carbon import Reading, read
from trainer.launcher.energy.sampler import FLUSH, STOP, Order, order_line, tracker_of_node

ROOT = Path(__file__).resolve().parents[5]
KW_PER_S = 1 / 3600  # kWh that 1 kW comes to in a second


@pytest.fixture(autouse=True)
def one_kilowatt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codecarbon's own words for power that is known: memory that takes 1 kW, and a CPU that takes nothing."""
    for name, value in {"RAM": "1000", "CPU": "0"}.items():
        monkeypatch.setenv(f"CODECARBON_FORCE_{name}_POWER", value)
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)


Sampler = subprocess.Popen[bytes]


@pytest.fixture
def sampler() -> Iterator[Callable[..., Sampler]]:
    """Start a tracker with an order and variables of the environment."""
    started: list[Sampler] = []

    def start(order: Order, **environment: str) -> Sampler:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer.launcher.energy.sampler", order_line(order)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            cwd=ROOT,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def only(folder: Path) -> Reading:
    """Return the only reading of the only file there."""
    (file,) = folder.glob("*.csv")
    (reading,), problems = read(file.name, file.read_text())
    assert problems == []
    return reading


def once(found: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 30
    while not found():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def has_begun(folder: Path) -> None:
    once(lambda: any(folder.glob("*.csv")), "the tracker writes no file")


def longer_than(folder: Path, duration_s: float, what: str) -> None:
    once(lambda: only(folder).duration_s > duration_s, what)


def order(process: Sampler, words: bytes) -> bool:
    assert process.stdin is not None
    process.stdin.write(words)
    process.stdin.flush()
    return True


def test_a_folder_that_moves_a_full_disk_and_signals_cost_no_total(
    sampler: Callable[..., Sampler], tmp_path: Path
) -> None:
    """A folder in the way of the file's name stands for a full disk: neither takes the file."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    process = sampler(Order(str(old), country="FRA", measure_s=0.1, write_s=1e6))
    has_begun(old)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        before = only(old).duration_s
        process.send_signal(number)
        longer_than(old, before, f"{number.name} writes nothing")
        assert process.poll() is None
    before = only(old).duration_s
    file = old / only(old).file
    file.unlink()
    file.mkdir()
    changed = old.stat().st_mtime_ns
    order(process, FLUSH)
    once(lambda: old.stat().st_mtime_ns != changed, "nothing is tried")
    assert process.poll() is None
    file.rmdir()
    old.rename(new)
    order(process, STOP)
    assert process.wait(30) == 0
    assert only(new).duration_s > before
    assert not old.exists()


def test_time_alone_writes_totals_of_which_a_kill_leaves_the_last(
    sampler: Callable[..., Sampler], tmp_path: Path
) -> None:
    process = sampler(Order(str(tmp_path), country="FRA", measure_s=0.05, write_s=0.1))
    has_begun(tmp_path)
    first = only(tmp_path).duration_s
    longer_than(tmp_path, first + 0.5, "nothing is written as time goes on")
    process.kill()
    process.wait()
    assert only(tmp_path).duration_s > first + 0.5


RANK = """
import os, signal, sys, time
from trainer.launcher.energy.sampler import Order
from trainer.launcher.energy.sampler import tracker_of_node
with tracker_of_node(Order(sys.argv[1], country="FRA", measure_s=0.1, write_s=1e6), print):
    if os.fork() == 0:  # a child that outlives the rank, and holds the pipe open
        time.sleep(float(sys.argv[2]))
        os._exit(0)
    print("in", flush=True)
    time.sleep(60)
"""


def test_a_rank_that_is_killed_loses_nothing_even_where_a_child_of_it_goes_on(tmp_path: Path) -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK, str(tmp_path), "600"], stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
    )
    assert rank.stdout is not None and rank.stdout.readline() == b"in\n"
    has_begun(tmp_path)
    before = only(tmp_path)
    assert before.beside is not None and not before.beside.is_final
    rank.kill()
    try:
        once(lambda: (now := only(tmp_path).beside) is not None and now.is_final, "no last total")
    finally:
        os.killpg(rank.pid, signal.SIGKILL)
        rank.communicate()


SEEN = """
import os, sys
def note(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        with open(os.environ["SEEN"], "a") as file:
            file.write(f"{event} {arguments[1:]}\\n")
sys.addaudithook(note)
"""


def test_totals_are_the_jobs_share_of_a_known_power_and_neither_slurm_nor_a_network_is_asked(
    sampler: Callable[..., Sampler], tmp_path: Path
) -> None:
    """A hook records each connection that Python opens, and a configuration file asks codecarbon for some."""
    home, seen, asked = tmp_path / "home", tmp_path / "seen", tmp_path / "asked"
    home.mkdir()
    (home / "sitecustomize.py").write_text(SEEN)
    (home / ".codecarbon.config").write_text(
        "[codecarbon]\nsave_to_api = true\napi_call_interval = 1\noutput_methods = api\nallow_multiple_runs = false\n"
        "emissions_endpoint = http://127.0.0.1:1/\nco2_signal_api_token = x\nelectricitymaps_api_token = x\n"
    )
    (home / "scontrol").write_text(f"#!/bin/sh\necho asked > {asked}\n")
    (home / "scontrol").chmod(0o755)
    process = sampler(
        Order(str(tmp_path), intensity_g_per_kwh=250.0, measure_s=0.1),
        **{
            "HOME": str(home),
            "SEEN": str(seen),
            "PYTHONPATH": f"{home}:{ROOT}",
            "PATH": f"{home}:{os.environ['PATH']}",
        },
        **{"SLURM_JOB_ID": "77", "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3", "SLURMD_NODENAME": "x1"},
        **{"SLURM_CPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    has_begun(tmp_path)
    once(lambda: order(process, FLUSH) and only(tmp_path).duration_s > 1, "no total comes")
    order(process, STOP)
    assert process.wait(30) == 0
    assert not asked.exists() and not seen.exists()
    reading = only(tmp_path)
    assert reading.beside is not None and reading.beside.is_final
    logical = os.cpu_count() or 1
    share = 1.0 if logical == 1 else max(1 / logical, len(os.sched_getaffinity(0)) / logical % 1)
    assert (reading.beside.host, reading.beside.job, reading.beside.host_share) == ("x1", "70_3", share)
    assert (reading.beside.ram_method, reading.beside.devices) == ("given", ())
    assert reading.ram_kwh == pytest.approx(share * reading.duration_s * KW_PER_S, rel=0.1)
    assert reading.kwh == reading.ram_kwh
    assert reading.emissions_kg == pytest.approx(reading.kwh * 0.25)

    # The hook does see one.
    code = "import socket; socket.socket().connect_ex(('127.0.0.1', 1))"
    environment = {**os.environ, "SEEN": str(seen), "PYTHONPATH": str(home)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert "socket.connect" in seen.read_text()


@pytest.mark.nightly
def test_what_the_tracker_counts_is_what_codecarbon_itself_writes(tmp_path: Path) -> None:
    """Codecarbon's own file output, of the very same totals."""
    code = """
import json, sys
import trainer.launcher.energy.sampler as sampler
from codecarbon.output_methods.file import FileOutput
from trainer.launcher.energy.allocation import Allocation
from trainer.launcher.energy.sampler import Order
meter = sampler.Meter(Order(sys.argv[1], country="FRA"), Allocation("n1", "7", None, 1.0))
meter._tracker._output_handlers.append(FileOutput("theirs.csv", sys.argv[2]))
meter.end()
"""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    ours = tmp_path / "ours"
    ours.mkdir()
    subprocess.run([sys.executable, "-c", code, str(ours), str(theirs)], check=True, cwd=ROOT, timeout=60)
    (expected,), _ = read("theirs.csv", (theirs / "theirs.csv").read_text())
    found = only(ours)
    assert found.beside is not None and expected.beside is None
    for name in (
        "run_id",
        "duration_s",
        "cpu_kwh",
        "ram_kwh",
        "gpu_kwh",
        "emissions_kg",
        "pue",
        "gpu_count",
        "release",
    ):
        assert getattr(found, name) == pytest.approx(getattr(expected, name)), name
    head = (theirs / "theirs.csv").read_text().splitlines()[0]
    assert (next(ours.glob("*.csv")).read_text()).startswith(head + ",")


def test_a_tracker_that_cannot_measure_says_so_once_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken" / "codecarbon"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no such driver')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    said: list[str] = []
    with tracker_of_node(Order(str(tmp_path)), said.append) as flush:
        once(lambda: flush() is None and bool(said), "no message")
        flush()
    (line,) = said
    assert "codecarbon" in line and "no such driver" in line


def test_a_flush_returns_at_once_where_the_tracker_reads_nothing(tmp_path: Path) -> None:
    """It is stopped, its pipe full: neither a flush nor the end of the training waits for it without end."""
    with tracker_of_node(Order(str(tmp_path)), print) as flush:
        has_begun(tmp_path)
        (child,) = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[-1:]
        os.kill(int(child), signal.SIGSTOP)
        for _ in range(20_000):
            flush()
    os.kill(int(child), signal.SIGKILL)


def test_the_order_survives_a_command_line() -> None:
    argument = order_line(Order("/a b/ü", region="x"))
    assert json.loads(argument)["folder"] == "/a b/ü"
