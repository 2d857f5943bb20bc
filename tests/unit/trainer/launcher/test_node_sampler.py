from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from trainer.core.files import HeldFolder
from trainer.formats.attempt.node_samples import NodeSample, RankTiming
from trainer.formats.json_text import json_line
from trainer.launcher.node_sampler import BoundedLines, start_sampler

TIMING = RankTiming(rank=3, stage=1, iteration=10, iterations=10, own_s=1.5, step_s=2.0)


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def wait_for(path: Path, number: int) -> list[bytes]:
    deadline = time.monotonic() + 30
    while len(found := lines(path)) < number:
        assert time.monotonic() < deadline, f"{path} has {len(found)} lines"
        time.sleep(0.02)
    return found


def children() -> set[int]:
    return {int(one) for one in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()}


def test_a_sampler_writes_the_node_and_what_ranks_tell_and_ends_with_them(tmp_path: Path) -> None:
    others = children()
    pipe = start_sampler(tmp_path, 2, "x07", every_s=0.1)
    assert pipe is not None
    (sampler,) = children() - others
    os.write(pipe, b"half a line that nobody finished\n" + json_line(TIMING).encode() + b"\n")
    (timed,) = (msgspec.json.decode(line, type=RankTiming) for line in wait_for(tmp_path / "timings-2.jsonl", 1))
    assert (timed.node, timed.rank, timed.own_s) == ("x07", 3, 1.5)
    found = wait_for(tmp_path / "samples-2.jsonl", 3)
    sample = msgspec.json.decode(found[-1], type=NodeSample)
    told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert sample.memory_bytes == int(told["MemTotal"].split()[0]) * 1024 and sample.node == "x07"
    assert 0 < sample.available_bytes < sample.memory_bytes and 0.0 < sample.memory_share < 1.0
    assert sample.shm_bytes == os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    os.close(pipe)
    os.waitpid(sampler, 0)  # it ends by itself


def test_a_file_that_grows_too_long_keeps_its_newer_half(tmp_path: Path) -> None:
    kept = BoundedLines(HeldFolder(tmp_path), "samples-0.jsonl", most_bytes=1000)
    for number in range(500):
        kept.append(json.dumps({"number": number}))
        assert (tmp_path / "samples-0.jsonl").stat().st_size <= 1000
    numbers = [json.loads(line)["number"] for line in lines(tmp_path / "samples-0.jsonl")]
    assert numbers == list(range(numbers[0], 500)) and len(numbers) > 20


def test_a_link_in_the_files_place_is_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "of-somebody-else"
    target.write_text("kept\n")
    (tmp_path / "samples-0.jsonl").symlink_to(target)
    BoundedLines(HeldFolder(tmp_path), "samples-0.jsonl").append("{}")
    assert target.read_text() == "kept\n"


def test_a_link_that_comes_while_a_file_is_cut_is_not_read_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, path = tmp_path / "secret", tmp_path / "samples-0.jsonl"
    secret.write_text("a line\nprivate\n")
    path.write_text("x" * 500 + "\n")
    write = os.write

    def write_and_swap(fd: int, data: bytes) -> int:
        path.unlink()
        path.symlink_to(secret)
        return write(fd, data)

    monkeypatch.setattr("trainer.launcher.node_sampler.os.write", write_and_swap)
    BoundedLines(HeldFolder(tmp_path), path.name, most_bytes=100).append("{}")
    assert path.read_text() == "{}\n" and not path.is_symlink()
    assert secret.read_text() == "a line\nprivate\n"


def test_a_file_with_a_second_name_and_somebody_elses_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "samples-0.jsonl"
    path.write_text("kept\n")
    (tmp_path / "other").hardlink_to(path)
    BoundedLines(HeldFolder(tmp_path), path.name).append("{}")
    assert path.read_text() == "kept\n"
    (tmp_path / "other").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    BoundedLines(HeldFolder(tmp_path), path.name).append("{}")
    assert path.read_text() == "kept\n"


@pytest.mark.parametrize("is_a_fifo", [True, False], ids=["a FIFO", "a hung call"])
def test_a_sampler_ends_with_the_launcher_whatever_it_waits_in(tmp_path: Path, is_a_fifo: bool) -> None:
    code = "import sys, time; from trainer.launcher import node_sampler as own; "
    if is_a_fifo:
        os.mkfifo(tmp_path / "samples-0.jsonl")
    else:
        code += "own.LAST_S = 0.1; own.sample = lambda *_: time.sleep(600); "
    code += f"print('up', flush=True); own.main([{str(tmp_path)!r}, '0', 'x07', '0.1'])"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        child.stdin.close()
        child.wait(15)
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("module", ["torch", "numpy", "psutil"])
def test_a_sampler_costs_no_heavy_import(module: str) -> None:
    code = f"import sys, trainer.launcher.node_sampler; print({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "False\n"
