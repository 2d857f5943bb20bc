"""Slurm away, hung, or cut off in the middle: what submit, revise and cancel say, and what they leave."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from tests.cluster.commands import Answer, Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.tiny_run import write_run

DEADLINE_S = 8.0
#: Starting Python and reading the run file, on a machine busy with other tests.
START_S = 60.0


@pytest.fixture
def opsctl(local_cluster: RunningCluster) -> Iterator[Opsctl]:
    with open_folder() as folder:
        write_run(folder)
        yield Opsctl(local_cluster, folder)


def outage(cluster: RunningCluster, kind: str) -> AbstractContextManager[None]:
    return cluster.killed("slurmctld") if kind == "killed" else cluster.stopped("slurmctld")


def gives_up_in_time(kind: str, *commands: tuple[Opsctl, list[str]]) -> None:
    """Run the commands side by side: each must give up within its deadline, in one line, claiming nothing."""
    began = time.monotonic()
    children = [opsctl.start(*words) for opsctl, words in commands]
    answers = []
    for child in children:
        out, err = child.communicate(timeout=120)
        assert time.monotonic() - began < DEADLINE_S + START_S
        answers.append(Answer(child.returncode, out, err))
    for answer in answers:
        assert answer.code == 1 and answer.out == ""
        assert len(answer.err.strip().splitlines()) == 1 and "Slurm" in answer.err, answer.err
        if kind == "hung":  # by our deadline, not by Slurm's own time-out
            assert re.search(r"\b[1-8] s\b|no time left", answer.err), answer.err
        assert "unknown" in answer.err and not re.search(r"not running|no job|in the queue", answer.err)


@pytest.mark.parametrize("kind", ["killed", "hung"])
def test_without_a_controller_each_command_gives_up_in_time_and_claims_nothing(opsctl: Opsctl, kind: str) -> None:
    chain = opsctl.submit()
    files = sorted(str(path) for path in opsctl.state.rglob("*"))
    others = [Opsctl(opsctl.cluster, opsctl.folder / name) for name in ("one", "two", "three")]
    for other in others:
        write_run(other.folder)
    write_run(opsctl.folder, nodes=4)
    with outage(opsctl.cluster, kind):
        gives_up_in_time(
            kind,
            (others[0], ["submit"]),
            (others[1], ["submit", "--dry-run"]),
            (others[2], ["cancel"]),
            (opsctl, ["revise", "--resubmit"]),
        )
        assert opsctl("render").code == 0
        write_run(opsctl.folder, lr="2e-3")
        # What Slurm has fixed is as it was, so no one need ask it.
        assert opsctl("revise").code == 0
    assert all(other.chains() == [] and other.revisions() == [] for other in others)
    assert len(opsctl.revisions()) == 2
    assert set(files) <= {str(path) for path in opsctl.state.rglob("*")}
    assert opsctl.queue("%A") == [str(chain)]


@dataclass(frozen=True)
class Between:
    """A cluster whose sbatch is a script of the test's: it stands between opsctl and the real one."""

    opsctl: Opsctl
    sbatch: Path
    controller_pid: int

    def is_(self, body: str) -> None:
        self.sbatch.write_text(
            f"#!/bin/bash\nreal={shutil.which('sbatch', path=self.opsctl.cluster.environment()['PATH'])}\n{body}\n"
        )
        self.sbatch.chmod(0o755)


@pytest.fixture
def between(opsctl: Opsctl, tmp_path: Path) -> Between:
    folder = tmp_path / "cluster"  # where no one else could change what is run
    (folder / "bin").mkdir(parents=True)
    real = opsctl.cluster.cluster
    value = {**msgspec.to_builtins(real), "bin_folders": [str(folder / "bin"), *real.bin_folders]}
    (folder / "cluster.json").write_text(json.dumps(value))
    elsewhere = replace(opsctl.cluster, folder=folder)
    pid = opsctl.cluster.pid("slurmctld")
    assert pid is not None
    return Between(Opsctl(elsewhere, opsctl.folder), folder / "bin" / "sbatch", pid)


def test_a_submit_whose_answer_never_came_is_found_in_the_queue(between: Between) -> None:
    between.is_('"$real" "$@"; sleep 60')
    opsctl = between.opsctl
    answer = opsctl("submit", "--begin", "now+1day")
    assert answer.code == 0, answer.err
    assert opsctl.queue("%A") == [answer.out.strip()]
    assert [record["chain"] for record in opsctl.chains()] == [int(answer.out)]


def test_a_submit_that_never_reached_slurm_is_taken_back(between: Between) -> None:
    between.is_("sleep 60")
    opsctl = between.opsctl
    answer = opsctl("submit")
    assert answer.code == 1 and "nothing was submitted" in answer.err
    assert len(answer.err.strip().splitlines()) == 1
    assert opsctl.chains() == [] and opsctl.revisions() == []
    between.is_('exec "$real" "$@"')
    chain = opsctl.submit()
    assert [record["chain"] for record in opsctl.chains()] == [chain]
    assert not (opsctl.state / "submitting.json").exists()


def test_a_request_that_arrives_after_it_was_given_up_is_still_the_runs(between: Between) -> None:
    opsctl = between.opsctl
    # Handed over by a process that opsctl does not know of, seconds after opsctl was told nothing.
    between.is_(
        f"export real; cd {opsctl.folder}; cat >script\n"
        """setsid bash -c 'sleep 8; "$real" --parsable <script >new; mv new late' </dev/null >/dev/null 2>&1 &\n"""
        "sleep 60"
    )
    assert opsctl("submit", "--begin", "now+1day").code == 1
    wait_until((opsctl.folder / "late").exists, 30, "the late request")
    chain = (opsctl.folder / "late").read_text().strip()
    answer = opsctl("submit")
    assert answer.code == 1 and f"{chain}_[1-3%1] PENDING" in answer.err
    assert [record["chain"] for record in opsctl.chains()] == [int(chain)]


def test_a_submit_killed_before_it_could_record_is_recorded_by_the_next(between: Between) -> None:
    between.is_(f'"$real" "$@"; touch {between.opsctl.folder}/taken; sleep 5')
    opsctl = between.opsctl
    child = opsctl.start("submit", "--begin", "now+1day", "--", "--lr", "2e-3")
    wait_until((opsctl.folder / "taken").exists, 20, "sbatch to be through")
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=10)
    (chain,) = opsctl.queue("%A")
    assert opsctl.chains() == []
    answer = opsctl("submit")
    assert answer.code == 1 and f"{chain}_[1-3%1] PENDING" in answer.err
    (record,) = opsctl.chains()
    assert (record["chain"], record["arguments"]) == (int(chain), ["--lr", "2e-3"])
    assert record["revision"] == opsctl.revisions()[-1]


def test_a_submit_after_which_slurm_hangs_is_called_undecided_and_settled_later(between: Between) -> None:
    opsctl = between.opsctl
    pid = between.controller_pid
    between.is_(f'"$real" "$@" >{opsctl.folder}/taken; kill -STOP {pid}; sleep 60')
    try:
        answer = opsctl("submit", "--begin", "now+1day")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert answer.code == 1 and answer.out == "" and len(answer.err.strip().splitlines()) == 1
    assert "may or may not" in answer.err and "opsctl submit again" in answer.err
    assert opsctl.chains() == []
    chain = (opsctl.folder / "taken").read_text().strip()
    answer = opsctl("submit")
    assert answer.code == 1 and f"{chain}_[1-3%1] PENDING" in answer.err
    assert [record["chain"] for record in opsctl.chains()] == [int(chain)]
