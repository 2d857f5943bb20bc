from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from opsctl.core.errors import SlurmUnreachable
from opsctl.jobs.scheduler import chain
from opsctl.jobs.scheduler.tick import Own, tick
from opsctl.monitoring.gather.services import cron_seen
from opsctl.run.state.scheduler import heartbeat, histories, read_chain, read_runs, read_ticks
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory, a_cron, a_job, add

NOON, HOUR = 1_795_348_800.0, 3600


class Chain:
    """A chain that was started at noon."""

    def __init__(self, folder: Path) -> None:
        self.now = NOON + 5
        self.slurm = SlurmInMemory()
        self.cron = a_cron(folder, self.slurm)
        chain.start(self.cron, "slurm", HOUR, False, self.clock)
        found = read_chain(self.cron.paths)
        assert found is not None
        self.token = found.token

    def clock(self) -> float:
        return self.now

    def tick(self, due: float | None, token: str = "", job_id: int = 0) -> object:
        if due is not None:
            self.now = max(self.now, due)
        return tick(self.cron, Own(token or self.token, HOUR, None if due is None else int(due), job_id), self.clock)

    def queued(self) -> list[int]:
        """Due times in the queue, hours after noon."""
        return sorted(
            (int(job.comment.rpartition("=")[2]) - int(NOON)) // HOUR
            for job in self.slurm.queue
            if "tick=" in job.comment
        )

    def states(self) -> dict[str, str]:
        return {name: one.last.state for name, one in histories(read_runs(self.cron.paths)).items()}


@pytest.fixture
def begun(tmp_path: Path) -> Chain:
    return Chain(tmp_path / "cron")


def test_a_start_queues_the_next_two_and_a_tick_the_two_after_it(begun: Chain) -> None:
    assert begun.queued() == [1, 2]
    begun.tick(NOON + HOUR)
    assert begun.queued() == [2, 3]
    assert [(event.event, (event.due - NOON) / HOUR) for event in read_ticks(begun.cron.paths)] == [
        ("started", 0),
        ("claimed", 1),
        ("done", 1),
    ]


def test_the_next_ticks_are_queued_before_this_ones_work(begun: Chain) -> None:
    add(begun.cron, "hourly/one")
    begun.slurm.queue.clear()
    first = len(begun.slurm.scripts)
    begun.tick(NOON + HOUR)
    kinds = ["tick" if "cron tick" in script else "job" for script in begun.slurm.scripts[first:]]
    assert kinds == ["tick", "tick", "job"]


def test_no_job_stops_another_whatever_is_wrong_with_it(begun: Chain) -> None:
    cron = begun.cron
    add(cron, "hourly/a-fine")
    add(cron, "hourly/b-gpu", head="#SBATCH --gres=gpu:1")
    (cron.paths.hourly / "c-link.slurm").symlink_to("/etc/passwd")
    (cron.paths.hourly / "d-folder.slurm").mkdir()
    (cron.paths.hourly / "e-binary.slurm").write_bytes(b"#!/bin/bash\n\xff\xfe\x00")
    (cron.paths.hourly / "f;rm -rf $HOME\n.slurm").write_text("#!/bin/bash\n")
    add(cron, "hourly/g-open")
    (cron.paths.hourly / "g-open.slurm").chmod(0o666)
    add(cron, "hourly/h-refused", head="#SBATCH --partition=nowhere")
    begun.slurm.refuses = "nowhere"
    add(cron, "hourly/i-fine")
    begun.tick(NOON + HOUR)
    states = begun.states()
    assert [states["hourly/a-fine"], states["hourly/i-fine"]] == ["queued", "queued"]
    assert {name for name, state in states.items() if state == "refused"} == states.keys() - {
        "hourly/a-fine",
        "hourly/i-fine",
    }
    assert len(states) == 9
    ends = [event for event in read_ticks(cron.paths) if event.event == "done"]
    assert len(ends[0].problems) == 7 and ends[0].started == 2


def test_a_job_that_is_still_there_is_not_started_again(begun: Chain) -> None:
    add(begun.cron, "hourly/one")
    for hour in (1, 2, 3):
        begun.tick(NOON + hour * HOUR)
    (run,) = read_runs(begun.cron.paths)
    assert run.kept == 2
    begun.slurm.end(run.job_id, "COMPLETED")
    begun.tick(NOON + 4 * HOUR)
    assert [one.state for one in read_runs(begun.cron.paths)] == ["done", "queued"]


@pytest.mark.parametrize(
    ("slurms", "ours"),
    [("TIMEOUT", "timeout"), ("NODE_FAIL", "failed"), ("CANCELLED", "cancelled"), ("FAILED", "failed")],
)
def test_what_slurm_ended_is_closed_by_the_next_tick(begun: Chain, slurms: str, ours: str) -> None:
    add(begun.cron, "hourly/one")
    begun.tick(NOON + HOUR)
    begun.slurm.end(read_runs(begun.cron.paths)[0].job_id, slurms, exit_code=1 if slurms == "FAILED" else 0)
    begun.tick(NOON + 2 * HOUR)
    assert [one.state for one in read_runs(begun.cron.paths)] == [ours, "queued"]


def test_what_nobody_knows_is_lost_and_never_done(begun: Chain) -> None:
    add(begun.cron, "hourly/one")
    begun.tick(NOON + HOUR)
    begun.slurm.queue.clear()
    begun.tick(NOON + 2 * HOUR)
    assert [one.state for one in read_runs(begun.cron.paths)] == ["lost", "queued"]


def test_daily_jobs_run_once_a_day_also_when_their_tick_was_merged_into_another(begun: Chain) -> None:
    add(begun.cron, "daily/care")
    begun.tick(NOON + 11 * HOUR)
    assert begun.states() == {}
    begun.tick(NOON + 15 * HOUR)  # midnight UTC was the 12th hour
    assert begun.states() == {"daily/care": "queued"}
    begun.slurm.end(read_runs(begun.cron.paths)[0].job_id, "COMPLETED")
    begun.tick(NOON + 16 * HOUR)
    assert len(read_runs(begun.cron.paths)) == 1


def test_what_a_killed_tick_has_not_started_the_next_one_does_and_nothing_twice(
    begun: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("daily/a", "daily/b", "daily/c"):
        add(begun.cron, name)
    submit, number = begun.slurm.submit, 0

    def killed_at_the_second(script: str) -> int:
        nonlocal number
        is_job = "cron exec" in script
        number += is_job
        if is_job and number == 2:
            raise KeyboardInterrupt
        return submit(script)

    monkeypatch.setattr(begun.slurm, "submit", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        begun.tick(NOON + 12 * HOUR)
    assert begun.states() == {"daily/a": "queued", "daily/b": "asked"}
    begun.tick(NOON + 13 * HOUR)
    assert sorted(run.job for run in read_runs(begun.cron.paths)) == ["daily/a", "daily/b", "daily/c"]


def test_a_tick_of_another_chain_leaves_and_takes_its_own_successors_along(begun: Chain) -> None:
    old = begun.token
    chain.start(begun.cron, "slurm", HOUR, True, begun.clock)
    begun.slurm.queue.append(a_job(7, f"opsctl cron={old} tick={int(NOON + 9 * HOUR)}"))
    add(begun.cron, "hourly/one")
    said = begun.tick(NOON + HOUR, token=old)
    assert "now carried by" in said.left  # type: ignore[attr-defined]
    assert 7 in begun.slurm.cancelled and begun.states() == {}


def test_a_stopped_chain_does_nothing_more_and_a_new_start_makes_up_for_none_of_it(begun: Chain) -> None:
    add(begun.cron, "hourly/one")
    chain.stop(begun.cron)
    assert begun.queued() == []
    begun.tick(NOON + HOUR)
    assert begun.states() == {}
    begun.now = NOON + 30 * HOUR + 10
    done = chain.start(begun.cron, "slurm", HOUR, False, begun.clock)
    assert done.is_new and begun.queued() == [31, 32]
    begun.token = done.chain.token
    begun.tick(NOON + 31 * HOUR)
    claimed = [event for event in read_ticks(begun.cron.paths) if event.event == "claimed"]
    assert [(event.first, event.due) for event in claimed] == [(NOON + 31 * HOUR, NOON + 31 * HOUR)]


def test_a_dead_chain_that_is_started_again_makes_up_for_what_was_missed_at_once(begun: Chain) -> None:
    begun.slurm.queue.clear()
    begun.now = NOON + 5 * HOUR + 100
    os.utime(begun.cron.paths.heartbeat, (1, 1))
    done = chain.start(begun.cron, None, None, False, begun.clock)
    assert done.is_new and begun.queued() == [5, 6, 7]
    begun.token = done.chain.token
    begun.tick(NOON + 5 * HOUR)
    (claimed,) = [event for event in read_ticks(begun.cron.paths) if event.event == "claimed"]
    assert (claimed.first, claimed.due) == (NOON + HOUR, NOON + 5 * HOUR)


def test_starting_a_living_one_again_only_mends_its_queue(begun: Chain) -> None:
    begun.slurm.queue.pop()
    done = chain.start(begun.cron, None, None, False, begun.clock)
    assert not done.is_new and done.chain.token == begun.token
    assert begun.queued() == [1, 2] and len(done.queued) == 1


def test_a_slurm_that_takes_nothing_leaves_the_old_chain_as_it_was(begun: Chain) -> None:
    begun.slurm.error = SlurmUnreachable("gone")
    with pytest.raises(SlurmUnreachable):
        chain.start(begun.cron, "slurm", HOUR, True, begun.clock)
    found = read_chain(begun.cron.paths)
    assert found is not None and found.token == begun.token


def test_a_damaged_record_of_the_chain_ends_nothing_and_is_mended(begun: Chain) -> None:
    add(begun.cron, "hourly/one")
    begun.cron.paths.chain.write_text('{"token": "12')
    begun.tick(NOON + HOUR)
    assert begun.states() == {"hourly/one": "queued"}
    found = read_chain(begun.cron.paths)
    assert found is not None and found.token == begun.token


def test_damaged_lines_and_those_of_a_newer_release_are_passed_over(begun: Chain) -> None:
    with begun.cron.paths.ticks.open("a") as file:
        file.write(
            '{"event": "claimed", "due"\n[]\n'
            '{"event": "slept", "due": 99999999999, "at": "2026-11-22T12:00:00Z", "new": 1}\n'
        )
    begun.tick(NOON + HOUR)
    assert [event.due for event in read_ticks(begun.cron.paths) if event.event == "done"] == [NOON + HOUR]


def test_a_folder_that_is_gone_ends_the_chain_instead_of_going_on_for_ever(begun: Chain, tmp_path: Path) -> None:
    begun.cron.paths.folder.rename(tmp_path / "away")
    submitted = len(begun.slurm.scripts)
    said = begun.tick(NOON + HOUR)
    assert said.left and len(begun.slurm.scripts) == submitted  # type: ignore[attr-defined]


def test_a_heartbeat_is_only_beaten_when_what_is_due_could_be_claimed(
    begun: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(begun.cron.paths.heartbeat, (1, 1))
    begun.cron.paths.ticks.unlink()
    begun.cron.paths.ticks.mkdir()
    said = begun.tick(NOON + HOUR)
    assert "not claimed" in said.problems[-1]  # type: ignore[attr-defined]
    beat = heartbeat(begun.cron.paths)
    assert beat is not None and beat.is_dead(HOUR)
    begun.cron.paths.ticks.rmdir()
    begun.tick(NOON + HOUR)
    beat = heartbeat(begun.cron.paths)
    assert beat is not None and not beat.is_dead(HOUR)


def test_a_clock_that_was_a_year_ahead_for_one_tick_stops_no_job_for_a_year(begun: Chain) -> None:
    add(begun.cron, "hourly/one")
    right = begun.now
    begun.now = right + 365 * 24 * HOUR
    begun.tick(NOON + HOUR)
    begun.now = right
    for run in read_runs(begun.cron.paths):
        begun.slurm.end(run.job_id, "COMPLETED")
    begun.tick(NOON + 2 * HOUR)
    assert [run.due - int(NOON) for run in read_runs(begun.cron.paths)][1:] == [2 * HOUR]


def test_ticks_that_are_over_make_room_where_an_account_may_have_just_so_many_jobs(begun: Chain) -> None:
    begun.slurm.most = 2  # those for one and two o'clock, which wait until half past three
    begun.now = NOON + 3.5 * HOUR
    begun.tick(NOON + HOUR)
    assert begun.queued() == [4, 5]


def test_lines_that_no_tick_has_written_end_neither_a_tick_nor_a_look(begun: Chain) -> None:
    add(begun.cron, "hourly/one")
    tick = {"event": "claimed", "at": "2026-11-22T12:00:00+00:00", "due": int(NOON), "period_s": HOUR}
    ticks: list[dict[str, Any]] = [{"period_s": 0}, {"period_s": -1}, {"due": 10**40}, {"first": -(10**40)}]
    for wrong in ticks:
        with begun.cron.paths.ticks.open("a") as file:
            file.write(json.dumps({**tick, **wrong}) + "\n")
    run = {"event": "asked", "run": "r", "job": "hourly/other", "at": tick["at"], "limit_s": 60, "job_id": 1}
    runs: list[dict[str, Any]] = [
        {"run": "r\0"},
        {"run": "../r"},
        {"job": "x\0"},
        {"limit_s": 10**40},
        {"job_id": 10**40},
    ]
    for wrong in runs:
        with begun.cron.paths.job_runs.open("a") as file:
            file.write(json.dumps({**run, **wrong}) + "\n")
    begun.tick(NOON + HOUR)
    assert begun.states()["hourly/one"] == "queued" and begun.queued() == [2, 3]
    cron_seen(begun.cron.paths.folder, datetime.now(UTC))
