"""Closings for attempts that could not close themselves, with a stand-in for Slurm. Cluster tests use a real one."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs

from opsctl.core.account import account_name
from opsctl.core.errors import SlurmUnreachable
from opsctl.run.attempts.close_lost import close_lost_attempts, settle
from opsctl.run.attempts.events import Attempt, append_closed, append_opened, read
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chains import Chain, append_chain
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.types import Job, JobEnd

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def minutes(number: float) -> datetime:
    return NOON + timedelta(minutes=number)


class StandIn:
    """A Slurm with these jobs and ends, which may show only the caller's jobs."""

    def __init__(self, jobs: Iterable[Job] = (), ends: Iterable[JobEnd] = (), hides: bool = False) -> None:
        self._hides, self.preempted_ids = hides, frozenset[int]()
        self._jobs, self._ends = list(jobs), {end.job_id: end for end in ends}

    def jobs(self, users: Any = None, job_ids: Any = None) -> list[Job]:
        return [job for job in self._jobs if job_ids is None or job.job_id in job_ids]

    def ends(self, job_ids: Iterable[int]) -> dict[int, JobEnd]:
        return {job_id: self._ends[job_id] for job_id in job_ids if job_id in self._ends}

    def preempted(self, job_ids: Iterable[int]) -> dict[int, datetime]:
        return {job_id: NOON for job_id in job_ids if job_id in self.preempted_ids}

    def hides_others_jobs(self) -> bool:
        return self._hides

    def configuration(self) -> dict[str, str]:
        return {}


def slurm(jobs: Iterable[Job] = (), ends: Iterable[JobEnd] = ()) -> SlurmClient:
    return cast(SlurmClient, StandIn(jobs, ends))


def job(job_id: int, state: str = "RUNNING", **changes: Any) -> Job:
    base = Job(
        job_id=job_id,
        array_job_id=job_id,
        array_task="",
        name="run",
        user="ann",
        partition="main",
        state=state,
        reason="None",
        nodes="x[01-02]",
        node_count=2,
        elapsed_s=0,
        time_limit_s=600,
        submitted_at=NOON,
        started_at=NOON,
        ends_at=None,
        dependency="",
        comment="opsctl run=abc submit=t",
        work_dir="/",
    )
    return structs.replace(base, **changes)


def end(job_id: int, state: str, exit_code: int = 0, ended_by: int = 0, started: float = 0, ended: float = 5) -> JobEnd:
    return JobEnd(job_id, state, exit_code, ended_by, minutes(started), minutes(ended), "x[01-02]")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    append_opened(paths, Attempt(number=1, id="a", job_id=7, opened_at=NOON, iteration_at_start=10))
    return paths


def test_a_running_job_stays_open(paths: RunPaths) -> None:
    for state in ("RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "A_NEWER_SLURMS"):
        (attempt,) = close_lost_attempts(paths, slurm([job(7, state)]))
        assert attempt.is_open
    assert read(paths)[0].is_open


def test_a_job_in_a_state_that_nobody_knows_may_be_on_its_nodes_also_where_slurm_names_none(paths: RunPaths) -> None:
    (attempt,) = close_lost_attempts(paths, slurm([job(7, "A_NEWER_SLURMS", nodes="")]))
    assert attempt.is_open


@pytest.mark.parametrize(
    ("ended", "reason", "exit_code"),
    [
        (end(7, "NODE_FAIL"), "node-failure", 0),
        (end(7, "FAILED", ended_by=9), "signal", 137),
        (end(7, "FAILED", exit_code=3), "failed", 3),
        (end(7, "TIMEOUT", ended_by=15), "time-limit", 143),
        (end(7, "CANCELLED"), "cancelled", 0),
        (end(7, "PREEMPTED"), "preempted", 0),
    ],
)
def test_slurms_word_closes_an_attempt(paths: RunPaths, ended: JobEnd, reason: str, exit_code: int) -> None:
    (attempt,) = close_lost_attempts(paths, slurm(ends=[ended]))
    assert (attempt.reason, attempt.exit_code, attempt.closed_at) == (reason, exit_code, minutes(5))
    assert attempt.closed_by not in ("", "job")
    assert read(paths) == [attempt]


@pytest.mark.parametrize(
    ("state", "reason"), [("FAILED", "preempted"), ("COMPLETED", "preempted"), ("NODE_FAIL", "node-failure")]
)
def test_a_job_that_ended_in_the_grace_time_of_a_preemption_was_preempted(
    paths: RunPaths, state: str, reason: str
) -> None:
    stand_in = StandIn(ends=[end(7, state, exit_code=143)])
    stand_in.preempted_ids = frozenset({7})
    assert close_lost_attempts(paths, cast(SlurmClient, stand_in))[0].reason == reason


def test_what_the_ranks_left_is_in_the_closing(paths: RunPaths) -> None:
    folder = paths.attempt_folder(7)
    folder.mkdir(parents=True)
    (folder / "ranks-0.json").write_text(json.dumps([{"rank": 0, "node": "x01", "gpu": "0"}]))
    (folder / "x02.out").write_text("[default1]: iteration       61/  100000 | consumed\n")
    (attempt,) = close_lost_attempts(paths, slurm(ends=[end(7, "NODE_FAIL")]))
    assert attempt.ranks[0].node == "x01"
    assert attempt.iteration_at_end == 61


def test_a_job_that_slurm_has_forgotten_ends_as_unknown(paths: RunPaths) -> None:
    (attempt,) = close_lost_attempts(paths, slurm())
    assert attempt.reason == "unknown" and "job 7" in attempt.note


def test_a_requeued_job_is_another_attempt(paths: RunPaths) -> None:
    (attempt,) = close_lost_attempts(paths, slurm([job(7, "PENDING", started_at=None)]))
    assert attempt.reason == "requeued"


def test_a_requeued_job_that_runs_again_knows_that_the_open_attempt_is_its_earlier_lifes(paths: RunPaths) -> None:
    running = slurm([job(7, "RUNNING", started_at=NOON)])
    assert close_lost_attempts(paths, running)[0].is_open
    assert close_lost_attempts(paths, running, own_job_id=7)[0].reason == "requeued"


def test_the_same_id_started_later_is_not_the_same_job(paths: RunPaths) -> None:
    (attempt,) = close_lost_attempts(paths, slurm([job(7, "RUNNING", started_at=minutes(30))]))
    assert attempt.reason is not None


@pytest.fixture
def chained(paths: RunPaths) -> RunPaths:
    """Return the run with its id and the chain of job 7."""
    paths.run_id.write_text("abc\n")
    chain = Chain(chain=7, user="ann", submitted_at=NOON, name="run", work_dir="/", array="1-3%1", token="t")
    append_chain(paths, chain)
    return paths


OTHERS = [{"name": "other"}, {"work_dir": "/other"}, {"user": "ben"}, {"comment": "opsctl run=other submit=t"}]


@pytest.mark.parametrize("other", OTHERS)
def test_another_job_that_got_the_id_at_once_is_not_the_attempts(chained: RunPaths, other: dict[str, str]) -> None:
    assert close_lost_attempts(chained, slurm([job(7, comment="")]))[0].is_open
    (attempt,) = close_lost_attempts(chained, slurm([job(7, **{"comment": "", **other})]))
    assert attempt.reason == "unknown"


@pytest.mark.parametrize("other", OTHERS)
def test_the_end_of_another_job_that_got_the_id_at_once_is_not_the_attempts(
    chained: RunPaths, other: dict[str, str]
) -> None:
    own: dict[str, Any] = {"name": "run", "work_dir": "/", "user": "ann", "submitted_at": NOON}
    of_another = replace(end(7, "COMPLETED"), **{**own, **other})
    assert close_lost_attempts(chained, slurm(ends=[of_another]))[0].reason == "unknown"


def test_the_end_of_a_job_that_was_requeued_much_later_is_still_the_attempts(chained: RunPaths) -> None:
    later = Attempt(number=2, id="b", job_id=7, opened_at=minutes(100), user="ann")
    append_opened(chained, later)
    own: dict[str, Any] = {"name": "run", "work_dir": "/", "user": "ann", "submitted_at": minutes(90)}
    ended = replace(end(7, "NODE_FAIL", started=95, ended=110), **own)
    assert close_lost_attempts(chained, slurm(ends=[ended]))[1].reason == "node-failure"


def test_an_end_of_another_clusters_job_of_that_id_is_not_taken(paths: RunPaths) -> None:
    for other in (end(7, "NODE_FAIL", started=-60, ended=-30), end(7, "NODE_FAIL", started=60, ended=90)):
        lost = RunPaths(paths.output / f"copy{other.started_at:%H}")
        lost.output.mkdir()
        append_opened(lost, Attempt(number=1, id="a", job_id=7, opened_at=NOON))
        assert close_lost_attempts(lost, slurm(ends=[other]))[0].reason == "unknown"


def test_closing_twice_or_by_two_at_once_changes_nothing(paths: RunPaths) -> None:
    first = close_lost_attempts(paths, slurm(ends=[end(7, "NODE_FAIL")]))
    append_closed(paths, structs.replace(first[0], reason="cancelled", closed_by="bob@b"))
    assert close_lost_attempts(paths, slurm(ends=[end(7, "CANCELLED")])) == first
    assert len(paths.attempts.read_text().splitlines()) == 3


def test_a_checkpoint_of_a_later_attempt_is_not_this_ones(paths: RunPaths) -> None:
    step = paths.checkpoints / "global_step90"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text('{"iteration": 90}')
    (paths.checkpoints / "latest").write_text("global_step90")
    assert close_lost_attempts(paths, slurm([job(7)]))[0].is_open
    append_opened(paths, Attempt(number=2, id="b", job_id=8, opened_at=minutes(9), iteration_at_start=10))
    first, second = close_lost_attempts(paths, slurm(ends=[end(7, "NODE_FAIL"), end(8, "NODE_FAIL", ended=20)]))
    assert (first.checkpoint_at_end, first.made_checkpoint) == (10, False)
    assert (second.checkpoint_at_end, second.made_checkpoint) == (90, True)


def test_what_came_of_an_attempt_is_its_own_also_after_a_task_that_left_it_the_lease(paths: RunPaths) -> None:
    step = paths.checkpoints / "global_step90"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text('{"iteration": 90}')
    (paths.checkpoints / "latest").write_text("global_step90")
    held = Attempt(number=2, id="h", job_id=8, opened_at=minutes(2), iteration_at_start=20)
    append_opened(paths, held)
    append_closed(paths, structs.replace(held, reason="held", closed_at=minutes(2), checkpoint_at_end=20))
    first = close_lost_attempts(paths, slurm(ends=[end(7, "NODE_FAIL")]))[0]
    assert (first.checkpoint_at_end, first.made_checkpoint) == (90, True)


def test_an_unreachable_slurm_closes_nothing(paths: RunPaths) -> None:
    class Silent(StandIn):
        def jobs(self, users: Any = None, job_ids: Any = None) -> list[Job]:
            raise SlurmUnreachable("no answer")

    with pytest.raises(SlurmUnreachable):
        close_lost_attempts(paths, cast(SlurmClient, Silent()))
    assert read(paths)[0].is_open


def test_an_attempt_of_somebody_whose_jobs_cannot_be_seen_stays_open_and_is_not_known(paths: RunPaths) -> None:
    append_opened(paths, Attempt(number=2, id="bobs", job_id=8, user="bob", opened_at=NOON))
    append_opened(paths, Attempt(number=3, id="own", job_id=9, user=account_name(), opened_at=NOON))
    hiding = cast(SlurmClient, StandIn(ends=[end(7, "TIMEOUT")], hides=True))
    found = settle(paths, hiding)
    assert [attempt.reason for attempt in found.attempts] == ["time-limit", None, "unknown"]
    assert found.unseen == {"bobs"}
    assert [attempt.is_open for attempt in read(paths)] == [False, True, False]
    # Accounting data of a hidden job is still Slurm's information.
    told = settle(paths, cast(SlurmClient, StandIn(ends=[end(8, "COMPLETED")], hides=True)))
    assert told.attempts[1].reason == "completed" and not told.unseen


@contextlib.contextmanager
def unwritable() -> Iterator[None]:
    """Let no file of this process grow: the kernel applies this limit to root too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_whoever_may_not_write_still_gets_the_answer(paths: RunPaths) -> None:
    with unwritable():
        with pytest.raises(OSError, match="File too large"):
            append_opened(paths, Attempt(number=2, id="b", job_id=8, opened_at=minutes(9)))
        assert close_lost_attempts(paths, slurm(ends=[end(7, "NODE_FAIL")]))[0].reason == "node-failure"
        assert read(paths)[0].is_open


def test_without_open_attempts_slurm_is_not_asked(tmp_path: Path) -> None:
    assert close_lost_attempts(RunPaths(tmp_path), cast(SlurmClient, None)) == []
