"""Test what Slurm says of a background command closes it, finds it again, or leaves it open."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, SlurmUnreachable
from opsctl.core.timestamps import now
from opsctl.jobs.background.records import BackgroundCommand, CommandRecords
from opsctl.jobs.background.submission import check, settle, start
from opsctl.jobs.tracked_job import ON_ITS_WAY
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.types import Job
from tests.unit.jobs.background.sent import a_command, a_place
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory, a_job


def states(place: CommandRecords, slurm: SlurmInMemory) -> list[str]:
    return [one.state for one in settle(place, slurm, place.all())]


def on_its_way(place: CommandRecords, folder: Path, ago: timedelta) -> BackgroundCommand:
    command = a_command(folder).with_last(asked_at=now() - ago)
    place.root.mkdir(parents=True, exist_ok=True)
    place.write(command)
    return command


@pytest.mark.parametrize(
    ("slurms", "exit_code", "ours"),
    [
        ("CANCELLED", 0, "cancelled"),
        ("TIMEOUT", 0, "stopped"),
        ("NODE_FAIL", 0, "stopped"),
        ("PREEMPTED", 0, "stopped"),
        ("OUT_OF_MEMORY", 0, "failed"),
        ("FAILED", 3, "failed"),
        ("COMPLETED", 0, "done"),
    ],
)
def test_what_could_not_say_its_end_is_closed_by_slurms_word(
    tmp_path: Path, slurms: str, exit_code: int, ours: str
) -> None:
    place, slurm = a_place(tmp_path), SlurmInMemory()
    command = start(place, slurm, a_command(tmp_path))
    assert states(place, slurm) == ["pending"]
    slurm.end(command.last.job_id, slurms, exit_code)
    assert states(place, slurm) == [ours]
    found = place.read(command.name)
    assert found is not None and found.ended_at is not None and (found.exit_code or 0) == exit_code


@pytest.mark.parametrize("shown", [{"name": "analysis"}, {"work_dir": "/home"}, {"comment": "opsctl run=1 submit=2"}])
def test_the_end_of_another_job_that_got_the_id_closes_nothing_as_done(tmp_path: Path, shown: dict[str, str]) -> None:
    place, slurm = a_place(tmp_path), SlurmInMemory()
    command = start(place, slurm, a_command(tmp_path))
    own: dict[str, Any] = {
        "name": "opsctl-checkpoints-prune",
        "user": account_name(),
        "work_dir": "/",
        "submitted_at": now(),
    }
    slurm.end(command.last.job_id, "COMPLETED", **{**own, **shown})
    assert states(place, slurm) == ["lost"]


def test_an_end_that_is_shown_with_the_background_commands_name_and_folder_closes_it(tmp_path: Path) -> None:
    place, slurm = a_place(tmp_path), SlurmInMemory()
    command = start(place, slurm, a_command(tmp_path))
    own: dict[str, Any] = {
        "name": "opsctl-checkpoints-prune",
        "user": account_name(),
        "work_dir": "/",
        "submitted_at": now(),
    }
    slurm.end(command.last.job_id, "COMPLETED", **own)
    assert states(place, slurm) == ["done"]


@pytest.mark.parametrize(("number", "ours"), [(signal.SIGUSR1, "stopped"), (signal.SIGSEGV, "failed")])
def test_a_script_that_died_of_the_warning_itself_came_to_its_limit(tmp_path: Path, number: int, ours: str) -> None:
    place, slurm = a_place(tmp_path), SlurmInMemory()
    command = start(place, slurm, a_command(tmp_path))
    slurm.end(command.last.job_id, "FAILED", signal=number)
    assert states(place, slurm) == [ours]
    found = place.read(command.name)
    assert found is not None and found.exit_code == 128 + number


def test_slurm_is_asked_one_question_for_all_and_none_where_nothing_is_open(tmp_path: Path) -> None:
    place, slurm = a_place(tmp_path), SlurmInMemory()
    asked = []

    class Counts(SlurmInMemory):
        def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
            asked.append(users)
            return slurm.jobs(users, job_ids)

    for word in "abc":
        start(place, slurm, a_command(tmp_path, "checkpoints", word))
    assert [one.state for one in settle(place, Counts(), place.all())] == ["pending"] * 3
    assert len(asked) == 1
    for one in place.all():
        place.write(one.ended("done"))
    assert states(place, Counts()) == ["done"] * 3 and len(asked) == 1


def test_a_cluster_that_is_gone_hides_nothing_of_another_one(tmp_path: Path) -> None:
    place, slurm = a_place(tmp_path), SlurmInMemory()
    gone = Cluster(name="gone")
    there = start(place, slurm, a_command(tmp_path, "checkpoints", "a"))
    place.write(msgspec.structs.replace(a_command(tmp_path, "checkpoints", "b"), cluster=gone).with_last(job_id=3))
    slurm.end(there.last.job_id, "COMPLETED")

    def client_of(cluster: Cluster) -> SlurmInMemory:
        return SlurmInMemory(error=SlurmUnreachable("no such cluster")) if cluster == gone else slurm

    seen, problem = check(place, place.all(), client_of)
    assert ([one.state for one in seen], problem) == (["done", "unknown"], "no such cluster")
    assert [one.state for one in place.all()] == ["done", "open"]


def test_what_a_newer_opsctl_wrote_is_shown_and_left_as_it_is(tmp_path: Path) -> None:
    place, slurm = a_place(tmp_path), SlurmInMemory()
    command = start(place, slurm, a_command(tmp_path))
    record = place.record(command.name)
    record.write_text(json.dumps({**json.loads(record.read_text()), "schema_version": 2, "of_tomorrow": True}))
    written = record.read_bytes()
    assert states(place, slurm) == ["pending"]
    slurm.end(command.last.job_id, "FAILED", 3)
    assert states(place, slurm) == ["unknown"]
    with pytest.raises(OpsctlError, match="newer"):
        place.write(place.all()[0])
    assert record.read_bytes() == written


def test_one_whose_answer_got_lost_is_found_by_its_comment(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    command = on_its_way(place, tmp_path, ON_ITS_WAY)
    slurm = SlurmInMemory(queue=[a_job(7, command.comment)])
    assert states(place, slurm) == ["pending"]
    found = place.read(command.name)
    assert found is not None and found.last.job_id == 7


def test_somebody_elses_comment_counts_for_nothing(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    command = on_its_way(place, tmp_path, ON_ITS_WAY)
    slurm = SlurmInMemory(queue=[a_job(7, command.comment, user="mallory")])
    assert states(place, slurm) == ["lost"]


def test_one_that_was_asked_for_just_now_is_not_lost_yet(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    on_its_way(place, tmp_path, timedelta(0))
    assert states(place, SlurmInMemory()) == ["on its way"]


def test_what_ended_while_slurm_was_asked_keeps_its_own_word(tmp_path: Path) -> None:
    place, slurm = a_place(tmp_path), SlurmInMemory()
    command = start(place, slurm, a_command(tmp_path))

    class Ends(SlurmInMemory):
        def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
            place.write(command.ended("failed", exit_code=9))
            return []

    assert states(place, Ends()) == ["failed"]
    found = place.read(command.name)
    assert found is not None and found.exit_code == 9


def test_the_job_that_counts_is_the_last_one(tmp_path: Path) -> None:
    place, slurm = a_place(tmp_path), SlurmInMemory()
    command = start(place, slurm, a_command(tmp_path))
    gone_on = msgspec.structs.replace(command, jobs=(*command.jobs, *command.jobs)).with_last(job_id=102)
    place.write(gone_on)
    slurm.queue = [a_job(102, gone_on.comment)]
    slurm.end(101, "COMPLETED")
    assert states(place, slurm) == ["pending"]
