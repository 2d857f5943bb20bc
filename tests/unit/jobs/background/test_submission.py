from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from opsctl.core.errors import OpsctlError, SlurmError, SlurmUnasked, SlurmUnreachable
from opsctl.jobs.background.submission import TRIES, script_of, start, start_next, tracked
from opsctl.jobs.tracked_job import find
from opsctl.run.config.schema import JobsTable
from opsctl.slurm.cluster import Cluster
from tests.unit.jobs.background.sent import a_command, a_place
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory, a_job


class LosesAnswers(SlurmInMemory):
    """Takes a job, or not, and does not say so."""

    takes = True

    def submit(self, script: str) -> int:
        if self.takes:
            super().submit(script)
        raise SlurmUnreachable("no answer")


class IsGone(LosesAnswers):
    """Takes a job and then answers nothing any more."""

    def submit(self, script: str) -> int:
        try:
            return super().submit(script)
        finally:
            self.error = SlurmUnreachable("no answer")


def options_of(script: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", script, re.MULTILINE))


def test_it_runs_where_the_profile_says_and_what_is_asked_for_comes_first(tmp_path: Path) -> None:
    table = JobsTable(partition="prepost", internet_partition="out", account="abc@cpu", time="20:00:00", nice=7)
    plain = options_of(script_of(a_place(tmp_path), a_command(tmp_path, table=table, given={"time": None})))
    assert (plain["partition"], plain["account"], plain["time"], plain["nice"]) == (
        *("prepost", "abc@cpu", "20:00:00", "7"),
    )
    far = a_command(tmp_path, table=table, internet=True)
    assert options_of(script_of(a_place(tmp_path), far))["partition"] == "out"
    asked = a_command(tmp_path, table=table, internet=True, given={"partition": "own", "time": "2:00"})
    asked_options = options_of(script_of(a_place(tmp_path), asked))
    assert (asked_options["partition"], asked_options["time"], asked_options["signal"]) == ("own", "2:00", "B:USR1@30")


@pytest.mark.parametrize("time", ["soon", "0", "1:00", "1:59", ""])
def test_a_limit_that_is_none_or_is_over_before_it_can_be_warned_of_is_refused(tmp_path: Path, time: str) -> None:
    with pytest.raises(OpsctlError, match=f"^--time '{time}'"):
        a_command(tmp_path, given={"time": time})
    with pytest.raises(OpsctlError, match=r"^the profile's \[jobs\] time"):
        a_command(tmp_path, table=JobsTable(time=time), given={"time": None})


def test_no_job_of_a_long_command_asks_for_gpus(tmp_path: Path) -> None:
    script = script_of(a_place(tmp_path), a_command(tmp_path))
    assert not re.search(r"^#SBATCH --(gres|gpu|tres)", script, re.MULTILINE)


def test_the_same_twice_is_refused_while_it_is_under_way_and_not_after(tmp_path: Path) -> None:
    place, slurm = a_place(tmp_path), SlurmInMemory()
    first = start(place, slurm, a_command(tmp_path))
    with pytest.raises(OpsctlError, match=f"job {first.last.job_id}, pending.*{first.name}"):
        start(place, slurm, a_command(tmp_path))
    other = start(place, slurm, a_command(tmp_path, "checkpoints", "prune", "--yes"))
    slurm.end(first.last.job_id, "FAILED", 3)
    again = start(place, slurm, a_command(tmp_path))
    assert len({first.name, other.name, again.name}) == 3
    ended = place.read(first.name)
    assert ended is not None and (ended.state, ended.exit_code) == ("failed", 3)


def test_the_same_words_in_another_folder_or_for_another_cluster_are_something_else(tmp_path: Path) -> None:
    place, slurm, first = a_place(tmp_path), SlurmInMemory(), a_command(tmp_path)
    start(place, slurm, first)
    elsewhere = msgspec.structs.replace(a_command(tmp_path), folder="/another")
    other_cluster = msgspec.structs.replace(a_command(tmp_path), cluster=Cluster(name="another"))
    assert [start(place, slurm, one).last.job_id for one in (elsewhere, other_cluster)] == [102, 103]


def test_somebody_elses_comment_is_not_the_job_whose_answer_got_lost(tmp_path: Path) -> None:
    command = a_command(tmp_path)
    assert find(tracked(command), [a_job(7, command.comment, user="mallory")]) is None
    own = a_job(8, command.comment)
    assert find(tracked(command), [a_job(7, command.comment, user="mallory"), own]) == own


def test_the_next_job_is_on_record_before_slurm_is_asked_for_it(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    command = start(place, SlurmInMemory(), a_command(tmp_path))

    class Looks(SlurmInMemory):
        def submit(self, script: str) -> int:
            (known,) = place.all()
            assert len(known.jobs) == 2 and known.comment in script
            return super().submit(script)

    assert len(start_next(place, Looks(), command).jobs) == 2


def test_it_is_on_record_before_slurm_is_asked_and_nothing_is_left_of_a_refused_one(tmp_path: Path) -> None:
    place = a_place(tmp_path)

    class Looks(SlurmInMemory):
        def submit(self, script: str) -> int:
            (known,) = place.all()
            assert known.comment in script and known.is_open and not known.last.job_id
            raise SlurmError("Slurm refused to take the job: no")

    with pytest.raises(SlurmError, match="refused"):
        start(place, Looks(), a_command(tmp_path))
    assert place.all() == []
    assert [path.name for path in place.root.iterdir()] == ["lock"]


def test_a_job_whose_answer_got_lost_is_found_by_its_comment(tmp_path: Path) -> None:
    done = start(a_place(tmp_path), LosesAnswers(), a_command(tmp_path))
    assert done.last.job_id == 101


def test_one_that_slurm_does_not_have_is_not_under_way(tmp_path: Path) -> None:
    place, slurm = a_place(tmp_path), LosesAnswers()
    slurm.takes = False
    with pytest.raises(SlurmUnreachable):
        start(place, slurm, a_command(tmp_path))
    assert [one.state for one in place.all()] == ["lost"]


def test_nothing_is_left_of_one_that_nobody_was_asked_to_take(tmp_path: Path) -> None:
    place, slurm = a_place(tmp_path), SlurmInMemory()
    slurm.error = SlurmUnasked("no slurm.conf")
    with pytest.raises(SlurmUnasked, match=r"^no slurm.conf"):
        start(place, slurm, a_command(tmp_path))
    assert place.all() == []


def test_one_of_which_nobody_knows_stays_on_record(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    with pytest.raises(SlurmUnreachable):
        start(place, IsGone(), a_command(tmp_path))
    assert [(one.state, one.last.job_id) for one in place.all()] == [("open", 0)]


def test_the_next_job_is_asked_for_again_only_where_slurm_has_not_got_it(tmp_path: Path) -> None:
    place, slurm = a_place(tmp_path), LosesAnswers()
    command = start(place, slurm, a_command(tmp_path))
    command = start_next(place, slurm, command)
    assert command.last.job_id == 102
    assert len(slurm.scripts) == 2
    pauses: list[float] = []
    slurm.takes = False
    with pytest.raises(SlurmUnreachable):
        start_next(place, slurm, command, pauses.append)
    assert len(pauses) == TRIES - 1
