"""`opsctl logs`: its output and its end. Following a log is a process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.reading import read_so_far_bytes
from tests.unit.cli.called import Answer, answer

OPSCTL = [sys.executable, "-m", "opsctl"]
RUN_FILE = """
[run]
name = "demo"
[slurm]
nodes = 2
gpus_per_node = 2
time = "10:00"
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder without a log."""
    (tmp_path / "run.toml").write_text(RUN_FILE)
    return tmp_path


def environment() -> dict[str, str]:
    """Without Slurm and without a run chosen elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPSCTL_", "SLURM_"))}
    return {**kept, "PATH": "/nonexistent", "PYTHONUNBUFFERED": "1"}


def logs(run: Path, *words: str) -> Answer:
    """`opsctl logs` with these words."""
    return answer(run, "logs", *words, environment=environment())


@pytest.fixture
def following(run: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `opsctl logs -f` with further words, and ends it after the test whatever happened."""
    children: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [*OPSCTL, "logs", "-f", *words],
            cwd=run,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait(timeout=10)


Following = Callable[..., subprocess.Popen[str]]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_the_last_lines_are_printed_without_any_slurm(run: Path) -> None:
    write(run / "output/logs/main_log.txt", "".join(f"line {n}\n" for n in range(100)))
    assert logs(run, "-n", "2") == Answer(0, "line 98\nline 99\n", "")


def test_a_log_that_is_not_there_is_named_with_where_to_look_next(run: Path) -> None:
    found = logs(run)
    assert found.returncode == 1 and found.stdout == ""
    assert found.stderr.count("\n") == 1 and str(run / "output/logs/main_log.txt") in found.stderr


def test_a_run_file_that_somebody_is_editing_does_not_hide_the_log(run: Path) -> None:
    write(run / "output/logs/main_log.txt", "a\n")
    (run / "run.toml").write_text(RUN_FILE + "\n[trainer]\nnot_an_option = 1\n")
    assert logs(run).stdout == "a\n"


def test_following_a_log_before_it_exists_ends_quietly_with_control_c(run: Path, following: Following) -> None:
    child = following()
    assert child.stderr is not None and child.stdout is not None
    assert str(run / "output/logs/main_log.txt") in child.stderr.readline()
    write(run / "output/logs/main_log.txt", "first\n")
    assert child.stdout.readline() == "first\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=10)
    assert (child.returncode, out) == (130, "") and "Traceback" not in err and "interrupted" not in err


def test_a_reader_that_leaves_ends_the_following_of_a_log_that_says_nothing_more(
    run: Path, following: Following
) -> None:
    write(run / "output/logs/main_log.txt", "first\n")
    child = following()
    assert child.stdout is not None and child.stderr is not None
    assert child.stdout.readline() == "first\n"
    child.stdout.close()
    child.wait(timeout=10)
    assert child.returncode == 141 and child.stderr.read() == ""
    child.stderr.close()


def attempt(run: Path, job_id: int, node: str, ranks: list[int]) -> Path:
    """Return what the launcher of one node leaves."""
    folder = run / "output/logs/attempts" / str(job_id)
    folder.mkdir(parents=True, exist_ok=True)
    places = [{"rank": rank, "local_rank": n, "node": node, "gpu": "", "pid": 1} for n, rank in enumerate(ranks)]
    (folder / f"ranks-{node[-1]}.json").write_text(json.dumps(places))
    lines = [f"[default{n}]:rank {rank} of {job_id} says {word}\n" for word in "abc" for n, rank in enumerate(ranks)]
    (folder / f"{node}.out").write_text("srun: not a rank's\n" + "".join(lines))
    return folder


def test_a_rank_shows_its_own_lines_of_the_newest_attempt(run: Path) -> None:
    old = attempt(run, 11, "node1", [2, 3])
    os.utime(old / "ranks-1.json", (1, 1))
    attempt(run, 12, "node1", [0, 1])
    attempt(run, 12, "node2", [2, 3])
    found = logs(run, "--rank", "3", "-n", "2")
    assert (found.stdout, found.stderr) == ("rank 3 of 12 says b\nrank 3 of 12 says c\n", "")


def test_a_rank_that_does_not_exist_is_told_which_do(run: Path) -> None:
    attempt(run, 12, "node1", [0, 1])
    found = logs(run, "--rank", "7")
    assert found.returncode == 1 and re.search(r"\b7\b.*\b12\b.*\b0 .*\b1\b", found.stderr)


def test_a_rank_before_any_attempt_is_told_so(run: Path) -> None:
    found = logs(run, "--rank", "0")
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (1, "", 1)


def test_following_a_rank_gives_its_new_lines_alone(run: Path, following: Following) -> None:
    folder = attempt(run, 12, "node1", [0, 1])
    child = following("--rank", "1", "-n", "1")
    assert child.stdout is not None
    assert child.stdout.readline() == "rank 1 of 12 says c\n"
    write(folder / "node1.out", "[default0]:not this\n[default1]:but this\n")
    assert child.stdout.readline() == "but this\n"
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=10)


def test_the_end_of_a_huge_log_is_shown_without_reading_the_rest(run: Path) -> None:
    path = run / "output/logs/main_log.txt"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.seek(2**28)
        file.write(b"\nlast\n")
    before = read_so_far_bytes()
    assert logs(run, "-n", "1").stdout == "last\n"
    assert read_so_far_bytes() - before < path.stat().st_size / 2, "what it imports and the end of the log"


@pytest.mark.parametrize("node", ["../../../../secret", "/etc/secret"])
def test_a_rank_map_leads_to_no_file_outside_of_the_attempt(run: Path, node: str) -> None:
    (run / "secret.out").write_text("[default0]:secret\n")
    folder = attempt(run, 12, "node1", [0, 1])
    (folder / "ranks-1.json").write_text(json.dumps([{"rank": 0, "local_rank": 0, "node": node, "gpu": "", "pid": 1}]))
    found = logs(run, "--rank", "0")
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (1, "", 1)
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("words", [(), ("-f",)])
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_log_that_is_no_plain_file_is_refused_in_a_line_at_once(run: Path, kind: str, words: tuple[str, ...]) -> None:
    log = run / "output/logs/main_log.txt"
    log.parent.mkdir(parents=True)
    if kind == "link":
        write(run / "thesis.txt", "secret\n")
        log.symlink_to(run / "thesis.txt")
    else:
        os.mkfifo(log)
    found = logs(run, *words)
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (1, "", 1)
    assert str(log) in found.stderr and "Traceback" not in found.stderr


def test_a_log_with_a_hole_of_gigabytes_is_shown_in_little_time_and_memory(run: Path) -> None:
    log = run / "output/logs/main_log.txt"
    write(log, "".join(f"first {n}\n" for n in range(1000)))
    with log.open("r+b") as file:
        file.seek(2**32)
        file.write(b"".join(b"line %d\n" % n for n in range(3000)))
    code = (
        "import resource, sys; from opsctl.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "main(['logs', '-n', '5000'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=run, env=environment(), capture_output=True, text=True, timeout=20
    )
    assert found.stdout.splitlines() == [f"first {n}" for n in range(1000)] + [f"line {n}" for n in range(3000)]
