"""A run that stays in the queue by itself: on a real Slurm, by several people at once, and what it leaves alone."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from opsctl.core.timestamps import now
from opsctl.run.attempts.events import Attempt, append_closed, append_opened
from opsctl.run.config.load import load_run_file
from opsctl.run.config.paths import RunPaths
from tests.cluster.commands import Answer, Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.tiny_run import write_checkpoint, write_run

GROUP = f"octeam{os.getpid()}"


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture
def opsctl(local_cluster: RunningCluster, folder: Path) -> Opsctl:
    write_run(folder)
    return Opsctl(local_cluster, folder)


def queued(opsctl: Opsctl) -> dict[int, str]:
    """array -> what it waits for, as Slurm says it."""
    rows = (row.split("|") for row in opsctl.queue("%F|%E"))
    return {int(array): waits for array, waits in rows}


def refilled(opsctl: Opsctl, code: int = 0) -> str:
    answer = opsctl("refill")
    assert answer.code == code, answer
    return answer.out


def running_chain(opsctl: Opsctl) -> int:
    """The run's chain, with a job of its own that runs and is not a training."""
    chain = opsctl.submit()
    opsctl.ok("cancel")
    (opsctl.state / "cancels.jsonl").unlink()
    mark = f"--comment=opsctl run={opsctl.run_id()} submit=0123"
    job = opsctl.cluster.sbatch("sleep 600", mark, "--nodes=1")
    opsctl.cluster.wait_for_state(job, "RUNNING")
    assert chain != job
    return job


def test_nothing_runs_then_one_chain_and_two_behind_it_and_then_nothing_more(opsctl: Opsctl) -> None:
    first = running_chain(opsctl)
    said = refilled(opsctl)
    second, third = sorted(set(queued(opsctl)) - {first})
    assert re.search(rf"^tiny: .*{second} .*{first}; {third} .*{first}, {second}$", said)
    waits = queued(opsctl)
    assert f"afterany:{first}" in waits[second] and f"afterany:{second}_*" in waits[third]
    assert [row["how"] for row in opsctl.chains()] == ["submit", "refill", "refill"]
    assert refilled(opsctl).startswith("tiny: 2 ")
    assert set(queued(opsctl)) == {first, second, third}
    opsctl.cluster.run("scontrol", "hold", str(second))
    said = refilled(opsctl, 1)
    assert "JobHeldAdmin" in said and f"scontrol release {second}" in said
    opsctl.cluster.run("scontrol", "update", f"jobid={second}", "starttime=now+1day")
    opsctl.cluster.run("scontrol", "release", str(second))
    # The first ends: the second comes first, and one more goes behind the third.
    opsctl.cluster.run("scancel", str(first))
    wait_until(lambda: first not in queued(opsctl), 30, "the first to end")
    assert refilled(opsctl).startswith("tiny: ") and len(queued(opsctl)) == 3
    # All end, by no one's word here: one chain starts.
    opsctl.cluster.cancel_everything()
    said = refilled(opsctl)
    (only,) = queued(opsctl)
    assert said.startswith("tiny: ") and str(only) in said


def test_a_dry_run_says_it_and_changes_nothing(opsctl: Opsctl) -> None:
    first = opsctl.submit()
    answer = opsctl("refill", "--dry-run")
    assert answer.code == 0 and re.search(r"^tiny: .*\b2 arrays", answer.out)
    assert list(queued(opsctl)) == [first] and len(opsctl.chains()) == 1


def test_what_is_submitted_is_what_is_published_as_the_last_chain_was(opsctl: Opsctl) -> None:
    write_run(opsctl.folder, time="10:00", nodes=1)
    opsctl.submit("--array", "1-2%1", "--exclude", "node4", "--", "--exit-interval", "3")
    write_run(opsctl.folder, time="19:00", nodes=1)
    said = refilled(opsctl)
    assert "--exit-interval 3" in said
    last = opsctl.chains()[-1]
    assert (last["array"], last["exclude"], last["arguments"]) == ("1-2%1", "node4", [])
    shown = opsctl.cluster.run("scontrol", "show", "job", str(last["chain"])).stdout
    assert "TimeLimit=00:10:00" in shown and "ExcNodeList=node4" in shown and "NumNodes=1" in shown
    assert len(opsctl.revisions()) == 1
    script = opsctl.cluster.run("scontrol", "write", "batch_script", str(last["chain"]), "-").stdout
    assert "--exit-interval" not in script


def test_what_is_finished_stopped_cancelled_or_braked_is_left_alone(opsctl: Opsctl) -> None:
    opsctl.submit()
    paths = RunPaths(opsctl.folder / "output")
    before = queued(opsctl)
    opsctl.ok("kill-switch", "trigger", "--no-wait", "--reason", "a spike")
    said = refilled(opsctl)
    assert "kill switch" in said and said.endswith(": a spike\n") and queued(opsctl) == before
    opsctl.ok("kill-switch", "deactivate")
    opsctl.ok("cancel", "--queued")
    assert "cancelled" in refilled(opsctl)
    assert queued(opsctl) == {}
    opsctl.submit()
    opsctl.ok("cancel")
    assert "opsctl submit" in refilled(opsctl) and queued(opsctl) == {}
    opsctl.submit()
    refilled(opsctl)
    assert len(queued(opsctl)) > 1
    opsctl.cluster.cancel_everything()
    for number in (1, 2, 3):
        attempt = Attempt(number=number, id=str(number), job_id=9000 + number, closed_at=now(), reason="exit-code")
        append_opened(paths, attempt)
        append_closed(paths, attempt)
    assert "3 attempts" in refilled(opsctl, 1)
    write_checkpoint(opsctl.folder, 500, 4000)
    assert "finished" in refilled(opsctl)
    assert queued(opsctl) == {}


def test_a_run_that_somebody_trains_unseen_or_a_queue_that_does_not_answer_is_not_refilled(opsctl: Opsctl) -> None:
    opsctl.submit()
    opsctl.cluster.cancel_everything()
    lease = opsctl.state / "lease.jsonl"
    lease.write_text(
        '{"event": "taken", "number": 1, "attempt": "far", "job_id": 77777, "user": "ann", "host": "x1"}\n'
    )
    said = refilled(opsctl, 1)
    assert "tiny" in said and "ann" in said and "77777" in said
    lease.unlink()
    opsctl.cluster.kill("slurmctld")
    try:
        refilled(opsctl, 1)
    finally:
        opsctl.cluster.start("slurmctld")
    wait_until(lambda: opsctl.cluster.run("scontrol", "ping", check=False).returncode == 0, 30, "the controller")
    assert queued(opsctl) == {} and len(opsctl.chains()) == 1


def test_refills_and_a_submit_at_once_come_to_the_right_number(opsctl: Opsctl) -> None:
    first = running_chain(opsctl)
    children = [opsctl.start("refill") for _ in range(3)]
    children.append(opsctl.start("submit", "--after", "auto"))
    answers = [(child.communicate(timeout=60), child.returncode) for child in children]
    assert [code for _, code in answers] == [0, 0, 0, 0], answers
    # The person's counts too, whenever it came: two behind, or three where the refill had been quicker.
    behind = sorted(set(queued(opsctl)) - {first})
    assert sum(row["how"] == "refill" for row in opsctl.chains()) in (1, 2)
    assert len(behind) == 1 + sum(row["how"] == "refill" for row in opsctl.chains())
    assert all(f"afterany:{first}" in queued(opsctl)[array] for array in behind)
    refilled(opsctl)
    assert set(queued(opsctl)) == {first, *behind}


def test_two_people_of_the_group_at_once_refill_it_to_the_right_number_and_say_whose_it_is(
    opsctl: Opsctl, unix_user: Callable[..., str]
) -> None:
    ann, ben, eve = unix_user("ann", groups_of=[GROUP]), unix_user("ben", groups_of=[GROUP]), unix_user("eve")
    write_run(opsctl.folder, group=GROUP)
    assert opsctl.says(ann, "submit", "--begin", "now+1day").code == 0
    first = opsctl.chains()[0]["chain"]
    # Forked here, after all imports: another user may not read this interpreter's library.
    with ProcessPoolExecutor(4, mp_context=get_context("fork")) as at_once:
        asked = [at_once.submit(opsctl.says, who, "refill") for who in (ann, ben, ann, ben)]
        answers: list[Answer] = [one.result(timeout=60) for one in asked]
    assert [one.code for one in answers] == [0] * 4, answers
    assert len(set(queued(opsctl)) - {first}) == 2 and len(opsctl.chains()) == 3
    newest = opsctl.chains()[-1]
    told = next(one.out for one in answers if str(newest["chain"]) in one.out)
    assert (ann in told and ben in told) == (newest["user"] == ben), told
    stranger = opsctl.says(eve, "refill")
    assert stranger.code == 1 and len(opsctl.chains()) == 3


def test_only_the_owner_refills_where_only_the_owner_publishes(opsctl: Opsctl, unix_user: Callable[..., str]) -> None:
    ann, ben = unix_user("ann", groups_of=[GROUP]), unix_user("ben", groups_of=[GROUP])
    path = write_run(opsctl.folder, group=f'{GROUP}"\npublish = "owner')
    assert load_run_file(path).file.run.publish == "owner"
    assert opsctl.says(ann, "submit", "--begin", "now+1day").code == 0
    answer = opsctl.says(ben, "refill")
    assert answer.code == 0 and ann in answer.out and '[run] publish = "owner"' in answer.out
    assert len(queued(opsctl)) == 1
    assert opsctl.says(ann, "refill").code == 0 and len(queued(opsctl)) > 1
