"""`opsctl job run` in chains: the end of a training, the brake, the time limit."""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from opsctl.jobs.runner.limit import WARNING_EARLY_S
from opsctl.run.attempts.events import Attempt, append_opened
from opsctl.run.config.load import load_run_file
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import START_S, Training, environment_script
from tests.tiny_run import write_checkpoint


@pytest.fixture
def training(local_cluster: RunningCluster) -> Iterator[Training]:
    with open_folder() as folder:
        yield Training(Opsctl(local_cluster, folder))


def test_an_unpublished_edit_changes_nothing_and_a_finished_trainings_tasks_leave_in_seconds(
    training: Training,
) -> None:
    training.write(train_samples=40, ranks=1)  # five iterations of eight
    chain = training.submit("1-4%1")
    training.write(train_samples=80, ranks=1, lr="5e-4")
    training.wait_for_log("END TIME:")
    training.wait_until_left(chain)
    first, *rest = training.attempts()
    assert (first["reason"], first["exit_code"], first["iteration_at_end"]) == ("finished", 0, 5)
    assert [(a["reason"], a["iteration_at_start"]) for a in rest] == [("finished", 5)] * 3
    assert set(training.ends(chain).values()) == {("COMPLETED", 0)}
    assert training.iterations() == [1, 2, 3, 4, 5]
    assert re.findall(r" lr \.+ (\S+)$", training.log(), re.MULTILINE) == ["0.001"]


def test_three_attempts_without_a_checkpoint_stop_the_chain_and_a_later_submit_starts_afresh(
    training: Training,
) -> None:
    """The environment script fails on the nodes: the least that can go wrong there. Its exit status is the job's."""
    script = environment_script(training.opsctl.folder, "exit 3")
    training.write(environment=script, ranks=1)
    chain = training.submit("1-9%1")
    behind = training.submit("1-2%1", "--after", "auto")
    training.wait_until_left(chain)
    training.wait_until_left(behind)
    assert [attempt["reason"] for attempt in training.attempts()] == ["failed"] * 3 + ["brake"]
    ends = training.ends(chain)
    assert [ends[task] for task in "1234"] == [("FAILED", 3)] * 3 + [("FAILED", 1)]
    assert {ends[task][0] for task in ends if task not in set("1234")} <= {"CANCELLED"}

    environment_script(training.opsctl.folder)
    training.submit("1-1")
    training.wait_for_iteration(1)
    training.paths.kill_switch.touch()
    training.wait_for_log("END TIME:", 4)
    assert training.attempts()[4]["reason"] == "kill-switch"


def test_what_a_training_is_started_with_is_on_record(training: Training) -> None:
    """One rank, which trains until the record is there: no one waits for it."""
    about = training.opsctl.folder / "more" / "tiny-1.0.dist-info" / "METADATA"
    about.parent.mkdir(parents=True)
    about.write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    script = environment_script(training.opsctl.folder, f"export PYTHONPATH={about.parents[1]}:$PYTHONPATH")
    training.write(environment=script, ranks=1)
    chain = training.submit("1-2%1")
    attempts = training.paths.attempt_folder(chain).parent
    what = "the record of what the training was started with"
    wait_until(lambda: [*attempts.glob("*/environment.json")], START_S, what)
    training.paths.kill_switch.touch()
    training.wait_until_left(chain)
    first, second = training.attempts()
    started_with = json.loads((training.paths.attempt_folder(first["job_id"]) / "environment.json").read_text())
    assert started_with["packages"]["tiny"]["version"] == "1.0" and "torch" in started_with["packages"]
    assert first["environment"] and second["environment"] == ""


def test_a_training_that_learns_nothing_any_more_stops_itself_and_its_chain(training: Training) -> None:
    """At this learning rate the first update leaves no finite weight. One rank."""
    training.write(ranks=1, lr="1e38\nmax_skipped_iterations = 3")
    chain = training.submit("1-4%1")
    training.wait_for_log("exiting program after 3 skipped or nan iterations in a row (--max-skipped-iterations)")
    training.wait_until_left(chain)
    assert [attempt["reason"] for attempt in training.attempts()] == ["skipped-iterations", "brake"]
    assert training.iterations() == [1, 2, 3, 4]
    ends = {task: state for task, (state, _) in training.ends(chain).items()}
    assert (ends.pop("1"), ends.pop("2")) == ("COMPLETED", "FAILED") and set(ends.values()) <= {"CANCELLED"}
    assert training.opsctl("watch", "no-progress").code == 2


@pytest.mark.parametrize("warns", ["test", pytest.param("slurm", marks=pytest.mark.nightly)])
def test_the_warning_before_the_time_limit_makes_the_trainer_save_and_leave(training: Training, warns: str) -> None:
    """A limit of two minutes, a margin of seconds; Slurm warns up to a minute early. One rank, at low priority.

    The test need not wait for Slurm's warning: it can send the same signal, once it is early enough to be the warning.
    """
    script = environment_script(training.opsctl.folder, "renice -n 19 $$")
    training.write(time="2", environment=script, exit_margin='"0:25"', ranks=1)
    chain = training.submit("1-1")
    training.wait_for_iteration(2)
    assert "exit_duration_in_mins" in training.log()
    if warns == "test":
        within = timedelta(minutes=2) - timedelta(seconds=25 + WARNING_EARLY_S - 1)  # of the limit's warning
        opened_at = datetime.fromisoformat(training.recorded()[0]["opened_at"])
        wait_until(lambda: datetime.now(UTC) > opened_at + within, what="the time of Slurm's earliest warning")
        training.opsctl.cluster.run("scancel", "--signal=USR1", "--batch", str(chain))
    training.wait_for_log("END TIME:")
    (attempt,) = training.attempts()
    assert (attempt["reason"], attempt["exit_code"]) == ("exit-duration", 0)
    assert attempt["checkpoint_at_end"] == attempt["iteration_at_end"] == training.iterations()[-1]
    assert "0:02:00" in attempt["note"] and attempt["note"].endswith(", SIGUSR1")
    assert f"opsctl: {attempt['note']}" in training.log()
    training.wait_until_left(chain)
    assert set(training.ends(chain).values()) == {("COMPLETED", 0)}


def test_a_damaged_revision_fails_on_record_until_the_brake_holds_and_the_kill_switch_comes_first(
    training: Training,
) -> None:
    training.write()

    def start_damaged(chain: int) -> None:
        newest = max(path for path in training.paths.revisions.iterdir())
        (newest / "trainer-arguments.json").unlink()
        training.opsctl.cluster.run("scontrol", "update", f"JobId={chain}", "StartTime=now")

    chain = training.submit("1-5%1", "--begin", "now+1day")
    start_damaged(chain)
    training.wait_until_left(chain)
    (revision,) = training.opsctl.revisions()
    assert [(one["reason"], one["exit_code"]) for one in training.attempts()] == [("failed", 1)] * 3 + [("brake", 1)]
    assert len(re.findall(rf"{revision}.*damaged", training.log())) == 4  # the brake names it too
    assert "START TIME" in training.log() and training.iterations() == []

    chain = training.submit("1-1", "--begin", "now+1day")  # a new revision goes over the damaged one
    training.paths.kill_switch.touch()
    start_damaged(chain)
    training.wait_until_left(chain)
    assert training.attempts()[-1]["reason"] == "kill-switch"
    assert set(training.ends(chain).values()) == {("COMPLETED", 0)}


def test_the_owners_task_passes_over_a_members_revision_and_starts_nothing_beside_a_lost_latest(
    training: Training, unix_user: Callable[..., str]
) -> None:
    training.write(train_samples=4000, publish='"owner"')
    chain = training.submit("1-2%1", "--begin", "now+1day")
    (first,) = training.paths.revisions.iterdir()
    training.write(publish='"owner"', lr="5e-4")
    second = training.opsctl.ok("revise")
    member = unix_user("member")
    for path in (training.paths.revisions / second, *(training.paths.revisions / second).iterdir()):
        os.chown(path, pwd.getpwnam(member).pw_uid, -1)
    write_checkpoint(training.opsctl.folder, 5, 40)
    write_checkpoint(training.opsctl.folder, 10, 80)
    (training.paths.checkpoints / "latest").unlink()
    name = load_run_file(training.opsctl.folder / "run.toml").file.run.name
    thesis, outputs = training.opsctl.folder / "thesis.txt", training.paths.job_outputs
    thesis.write_text("years of work\n")
    (outputs / f"{name}-{chain}_1.out").symlink_to(thesis)
    training.opsctl.cluster.run("scontrol", "update", f"JobId={chain}", "StartTime=now")
    training.wait_until_left(chain)
    assert thesis.read_text() == "years of work\n"
    passed_over = re.compile(rf"opsctl: .*\b{second} .*\b{member} .*\[run\] publish")
    assert passed_over.search((outputs / f"{name}-{chain}_2.out").read_text())
    assert len(passed_over.findall(training.log())) == 2
    last = training.attempts()[-1]
    assert (last["reason"], last["exit_code"], last["revision"]) == ("failed", 1, first.name)
    assert "opsctl checkpoints repoint" in last["note"]
    training.write(train_samples=4000, publish='"owner"')
    refused = training.opsctl("submit")
    assert refused.code == 2 and "opsctl checkpoints repoint" in refused.last_line
    assert training.opsctl.ok("checkpoints", "repoint") == "global_step10"
    training.submit("1-1", "--begin", "now+1day")


def test_with_a_hung_controller_attempts_are_listed_within_the_deadline(training: Training) -> None:
    training.write()
    training.paths.output.mkdir()
    append_opened(training.paths, Attempt(number=1, id="a", job_id=1, opened_at=datetime.now(UTC)))
    with training.opsctl.cluster.stopped("slurmctld"):
        answer = training.opsctl("attempts")
    assert answer.code == 0 and "not known" in answer.out and "running" not in answer.out
    # By the deadline of an interactive command, not by Slurm's own.
    assert answer.err.count("\n") == 1 and re.search(r"Slurm.*(\b[1-8] s\b|no time left)", answer.err), answer.err
