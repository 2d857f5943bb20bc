"""Long commands as Slurm jobs: sent, continued, interrupted, killed, on a node that dies, on a real Slurm.

What they do is read a corpus on a file system that does not answer: as long as they wait for it they are at work.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opsctl.core.files.state_files import write_state
from opsctl.jobs.background.records import BackgroundCommand, CommandRecords, command_records
from opsctl.jobs.background.submission import new_command, start
from opsctl.run.config.schema import JobsTable
from opsctl.run.state.background_progress import CommandProgress
from opsctl.slurm.backends import client_for
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.printed_json import printed

#: States of a job that may still do something.
LIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
TEXT = "".join(json.dumps({"text": f"line {number} of many words"}) + "\n" for number in range(50))
#: For what comes by itself, on however busy a machine, seconds.
LONG_S = 240
#: Makes anyone who opens the corpus read a FIFO first into which no one writes.
NO_ANSWER = """import os, sys

def wait(event, about):
    if event == "open" and about[0] == "corpus.jsonl" and os.path.exists("does_not_answer"):
        with open("does_not_answer") as pipe:
            pipe.read()

sys.addaudithook(wait)
"""
PREPARE = ("data", "prepare", "corpus.jsonl", "--output-prefix", "out", "--vocab-size", "300", "--workers", "1")


class Desk:
    """A person's folder with a corpus that can be read when the test lets it."""

    def __init__(self, cluster: RunningCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.opsctl = Opsctl(cluster, folder)
        self.corpus = folder / "corpus.jsonl"
        self.corpus.write_text(TEXT)
        self.pipe = folder / "does_not_answer"
        os.mkfifo(self.pipe)
        self._writer = os.open(self.pipe, os.O_RDWR)  # so that anyone who reads it has it open, and waits
        (folder / "programs").mkdir()
        (folder / "programs/sitecustomize.py").write_text(NO_ANSWER)

    def leave(self) -> None:
        os.close(self._writer)

    @property
    def place(self) -> CommandRecords:
        return command_records(self.opsctl.environment())

    @property
    def only(self) -> BackgroundCommand:
        (found,) = self.place.all()
        return found

    def listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = printed("jobs list", self.opsctl.ok("jobs", "--json"))
        return found

    def send(self, monkeypatch: pytest.MonkeyPatch, *, goes_on: bool = True) -> BackgroundCommand:
        """A background command of which the test says whether it is continued."""
        for name, value in self.opsctl.environment().items():
            monkeypatch.setenv(name, value)
        cluster = self.cluster.cluster
        given = {"time": "10:00"}
        words = (*PREPARE, "--overwrite")
        command = new_command(
            words, str(self.folder), 0o022, cluster, JobsTable(), given, goes_on=goes_on, internet=False, run=""
        )
        return start(self.place, client_for(cluster), command)

    def at_work(self, starts: int = 1, jobs: int = 1) -> BackgroundCommand:
        """Wait until the command of that start waits for its corpus."""
        name = self.only.name

        def reads() -> BackgroundCommand | None:
            one = self.place.read(name)
            is_begun = one is not None and (len(one.jobs), one.last.starts) == (jobs, starts)
            return one if is_begun and self.readers() else None

        found = wait_until(reads, LONG_S, f"start {starts} of job {jobs} to be at work")
        assert isinstance(found, BackgroundCommand)
        return found

    def readers(self) -> list[int]:
        """Processes that wait for the corpus to come."""
        others = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and entry.name != str(os.getpid()))
        return [int(entry.name) for entry in others if _has_open(entry, self.pipe)]

    def warn(self, command: BackgroundCommand) -> None:
        """The signal that Slurm itself sends before the limit, now."""
        self.cluster.run("scancel", "--signal=USR1", "--batch", str(command.last.job_id))

    def feed(self) -> None:
        """Let anyone who looks at the corpus from now on read it."""
        self.pipe.rename(self.folder / "did_not_answer")
        self.pipe = self.folder / "did_not_answer"

    def ended(self) -> BackgroundCommand:
        """Wait until it has ended; what could not say so itself is closed by a look."""

        def over() -> bool:
            one = self.only
            if one.is_open and self.cluster.job_state(one.last.job_id) not in LIVE:
                self.opsctl.ok("jobs")
                one = self.only
            return not one.is_open

        wait_until(over, LONG_S, "the command to end")
        return self.only

    def output(self) -> str:
        return self.place.output(self.only.name).read_text()


def _has_open(process: Path, path: Path) -> bool:
    try:
        return any(one.readlink() == path for one in (process / "fd").iterdir())
    except OSError:  # it has gone
        return False


@pytest.fixture
def desk(local_cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with open_folder() as folder:
        desk = Desk(local_cluster, folder)
        monkeypatch.setenv("PYTHONPATH", str(folder / "programs"))
        yield desk
        desk.leave()


def test_the_same_command_line_runs_as_a_job_and_two_at_once_are_refused(desk: Desk) -> None:
    sent = desk.opsctl(*PREPARE, "--job", "--time=10:00")
    assert sent.code == 0, sent.err
    command = desk.at_work()
    assert sent.out.strip() == str(command.last.job_id) and f"opsctl jobs logs -f {command.name}" in sent.err
    assert command.words == PREPARE and Path(command.folder) == desk.folder
    again = desk.opsctl(*PREPARE, "--time", "20:00", "--job")
    assert again.code == 1 and re.search(rf"\b{command.last.job_id}\b.*running.*{command.name}", again.err), again.err
    (row,) = desk.listed()
    assert (row["state"], row["jobs"], row["starts"], row["exit_code"]) == ("running", 1, 1, None)
    assert (row["job_id"], row["command"]) == (command.last.job_id, "opsctl " + " ".join(PREPARE))


def test_it_does_what_the_same_command_line_does_here_and_is_followed_to_its_end(desk: Desk) -> None:
    desk.feed()
    desk.opsctl.ok(*PREPARE)
    here = {path.name: path.read_bytes() for path in desk.folder.glob("out_text_document.*")}
    sent = desk.opsctl(*PREPARE, "--overwrite", "--json", "--job", "--time=10:00")
    told = printed("data prepare", sent.out)
    follower = desk.opsctl("jobs", "logs", "-f", str(told["job_id"]))
    assert follower.code == 0 and f"{told['errand']}: done" in follower.err, follower.err
    assert follower.out == desk.output() and '"documents": 50' in follower.out
    assert {path.name: path.read_bytes() for path in desk.folder.glob("out_text_document.*")} == here
    assert (desk.ended().state, desk.only.exit_code) == ("done", 0)


def test_its_exit_code_and_its_words_are_kept(desk: Desk) -> None:
    desk.corpus.unlink()
    desk.opsctl.ok(*PREPARE, "--job")
    command = desk.ended()
    direct = desk.opsctl(*PREPARE)
    assert (command.state, command.exit_code) == ("failed", direct.code) and direct.code
    (row,) = desk.listed()
    assert row["last_line"] == direct.err.strip().splitlines()[-1]
    assert desk.opsctl("jobs", "logs", "-f", command.name).code == direct.code


def test_past_its_limit_the_next_job_goes_on_until_it_is_done(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.send(monkeypatch)
    first = desk.at_work()
    desk.warn(first)
    second = desk.at_work(jobs=2)
    assert second.last.job_id != first.last.job_id
    desk.cluster.wait_for_state(first.last.job_id, "COMPLETED", timeout_s=LONG_S)
    desk.feed()
    desk.warn(second)
    command = desk.ended()
    assert (command.state, command.exit_code, len(command.jobs), command.in_vain) == ("done", 0, 3, 2)
    assert f"job {second.last.job_id} " in desk.output()
    assert not list(desk.folder.glob("*.tmp*"))


def test_one_that_makes_no_progress_is_not_gone_on_with_for_ever(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.send(monkeypatch)
    first = desk.at_work()
    desk.place.write(msgspec.structs.replace(first, in_vain=2))
    write_state(desk.place.root, desk.place.progress(first.name), CommandProgress(done=5))
    desk.warn(first)
    second = desk.at_work(jobs=2)
    assert second.in_vain == 0
    # What the first one told does not count for the next.
    desk.place.write(msgspec.structs.replace(second, in_vain=2))
    desk.warn(second)
    command = desk.ended()
    assert (command.state, len(command.jobs)) == ("stopped", 2)
    assert "3 times" in command.detail
    wait_until(lambda: not desk.cluster.run("squeue", "-h").stdout, LONG_S, "the queue to be empty")


def test_one_that_would_begin_anew_is_stopped_at_its_limit_and_says_so(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.send(monkeypatch, goes_on=False)
    desk.warn(desk.at_work())
    command = desk.ended()
    assert (command.state, len(command.jobs)) == ("stopped", 1) and "longer --time" in command.detail
    assert desk.readers() == []


def test_a_warning_that_meets_a_script_which_only_starts_stops_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    starts, waits = desk.folder / "starts", desk.folder / "never"
    os.mkfifo(waits)
    (desk.folder / "before.sh").write_text(f"touch {starts}; read -r _ < {waits}\n")
    monkeypatch.setenv("BASH_ENV", str(desk.folder / "before.sh"))  # what bash does before a script's first line
    command = desk.send(monkeypatch)
    wait_until(starts.exists, LONG_S, "the batch script to start")
    desk.warn(command)
    command = desk.ended()
    assert (command.state, command.exit_code, len(command.jobs)) == ("stopped", 128 + signal.SIGUSR1, 1)
    assert "--time" not in command.detail


def test_a_node_that_dies_costs_one_start(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.send(monkeypatch)
    first = desk.at_work()
    desk.feed()
    node = desk.cluster.run("squeue", "-h", "-j", str(first.last.job_id), "-o", "%N").stdout.strip()
    desk.cluster.kill_node(node)
    # As Slurm itself does some minutes after it last heard of a node.
    desk.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    # Slurm lets a job that it starts again wait for two minutes.
    wait_until(lambda: desk.cluster.job_state(first.last.job_id) == "PENDING", LONG_S, "Slurm to take it back")
    (row,) = desk.listed()
    assert (row["state"], row["job_id"]) == ("pending", first.last.job_id)
    desk.cluster.run("scontrol", "update", f"JobId={first.last.job_id}", "StartTime=now")
    command = desk.ended()
    assert (command.state, len(command.jobs), command.last.starts) == ("done", 1, 2)
    assert command.last.job_id == first.last.job_id


def test_cancelled_it_ends_with_all_that_it_started_and_nothing_goes_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.send(monkeypatch)
    command = desk.at_work()
    assert desk.opsctl.ok("jobs", "cancel", command.name) == str(command.last.job_id)
    wait_until(lambda: not desk.readers(), LONG_S, "the command to be gone")
    desk.cluster.wait_for_state(command.last.job_id, "CANCELLED", timeout_s=LONG_S)
    assert desk.ended().state == "cancelled" and len(desk.only.jobs) == 1
    refused = desk.opsctl("jobs", "cancel", command.name)
    assert refused.code == 1 and command.name in refused.err and "cancelled" in refused.err


def test_one_that_somebody_scancels_is_cancelled_by_slurms_word(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.send(monkeypatch)
    desk.cluster.run("scancel", str(desk.at_work().last.job_id))
    command = desk.ended()
    assert (command.state, len(command.jobs)) == ("cancelled", 1) and not desk.readers()


def test_killed_with_all_it_is_said_to_have_failed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.send(monkeypatch)
    name = desk.at_work().name
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _is_exec(process, name):
            os.kill(int(process.name), signal.SIGKILL)
    command = desk.ended()
    assert (command.state, command.exit_code) == ("failed", 128 + signal.SIGKILL)


def test_a_job_that_is_not_the_one_that_counts_does_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.send(monkeypatch)
    command = desk.at_work()
    second = desk.cluster.sbatch(
        f"{sys.executable} -m opsctl jobs exec --errand {command.name} --number 1",
        f"--output={desk.folder}/second.out",
    )
    desk.cluster.wait_for_state(second, "FAILED", timeout_s=LONG_S)
    assert f"job {command.last.job_id}" in (desk.folder / "second.out").read_text()
    assert len(desk.readers()) == 1


def _is_exec(process: Path, command: str) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return words[4:8] == [b"jobs", b"exec", b"--errand", command.encode()]
