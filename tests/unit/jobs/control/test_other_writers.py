"""A holder of the lease that the queue does not show as the run's. The file is real, a stand-in answers for Slurm."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from opsctl.core.errors import OpsctlError
from opsctl.jobs.control.live_jobs import LiveJobs, what_to_wait_for
from opsctl.run.attempts.events import Attempt, append_opened
from opsctl.run.attempts.hidden_jobs import Unseen
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.lease import OwnLease, take
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.types import Job, JobEnd
from tests.unit.run.attempts.test_close_lost import NOON, end, job, slurm
from trainer.formats.attempt.lease import SILENT_S

TWELVE = job(12, user="ann", comment="opsctl run=lost submit=t")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run whose lease job 12 of ann has, on cluster alps."""
    tmp_path.chmod(0o750)
    paths = RunPaths(tmp_path)
    append_opened(paths, Attempt(number=1, id="a", job_id=12, opened_at=NOON, user="ann", cluster="alps"))
    assert isinstance(take(paths, "a", 12, "ann", lambda _: None), OwnLease)
    return paths


def waits(
    paths: RunPaths,
    after: str | None = None,
    queue: Sequence[Job] = (),
    live: Sequence[Job] = (),
    ends: Sequence[JobEnd] = (),
    here: str = "alps",
    unseen: Sequence[Unseen] = (),
) -> tuple[str, ...]:
    return what_to_wait_for(paths, "tiny", LiveJobs(queue, live, unseen), Cluster(name=here), slurm(queue, ends), after)


def test_a_writer_that_the_queue_does_not_show_refuses_a_chain_by_name(paths: RunPaths) -> None:
    with pytest.raises(OpsctlError) as refused:
        waits(paths)
    said = str(refused.value)
    assert said.startswith("tiny ") and "job 12 of ann on " in said and "0 s ago" in said and "\n" not in said
    assert "opsctl submit --after auto" in said


def test_a_chain_lines_up_behind_it_when_asked(paths: RunPaths) -> None:
    other = job(20, user="ben")
    assert waits(paths, "auto", [other], [other]) == ("20", "12")


def test_behind_a_job_of_another_cluster_nothing_can_line_up(paths: RunPaths) -> None:
    for after in (None, "auto"):
        with pytest.raises(OpsctlError, match=r"job 12 of ann.*cluster alps"):
            waits(paths, after, here="jura")


def test_behind_a_job_of_another_cluster_nothing_can_line_up_where_jobs_are_hidden_either(paths: RunPaths) -> None:
    with pytest.raises(OpsctlError, match=r"job 12 of ann.*cluster alps"):
        waits(paths, "auto", here="jura", unseen=[Unseen(12, "ann")])


def test_another_clusters_job_of_the_same_id_is_no_sign_of_its_end(paths: RunPaths) -> None:
    with pytest.raises(OpsctlError, match=r"job 12 of ann.*cluster alps"):
        waits(paths, ends=[end(12, "COMPLETED")], here="jura")


def test_a_holders_job_whose_comment_is_another_runs_is_the_runs(paths: RunPaths) -> None:
    """As after the run's id was lost."""
    rest = structs.replace(TWELVE, job_id=13, state="PENDING", array_task="2-3", array_job_id=12)
    with pytest.raises(OpsctlError, match=r"tiny .*12 RUNNING \(ann\), 12_\[2-3\] PENDING \(ann\)"):
        waits(paths, queue=[TWELVE, rest])
    assert waits(paths, "auto", [TWELVE, rest]) == ("12",)
    with pytest.raises(OpsctlError, match=r"job 12 of ann.*--after auto"):
        waits(paths, queue=[structs.replace(TWELVE, user="ben")])  # an id that started over


def test_a_job_that_got_the_holders_id_is_neither_the_holder_nor_waited_for(paths: RunPaths) -> None:
    paths.run_id.write_text("5eed\n")
    for other in (TWELVE, structs.replace(TWELVE, comment="", name="analysis")):
        for after in (None, "auto"):
            with pytest.raises(OpsctlError, match=r"job 12 of ann.*--after auto"):
                waits(paths, after, [other])


def test_a_holder_that_the_queue_shows_is_named_once(paths: RunPaths) -> None:
    assert waits(paths, "auto", [TWELVE], [TWELVE]) == ("12",)
    assert waits(paths, "auto", unseen=[Unseen(12, "ann")]) == ("12",)


def test_a_heartbeat_that_stopped_or_a_job_that_slurm_knows_to_be_gone_refuses_nothing(paths: RunPaths) -> None:
    assert waits(paths, ends=[end(12, "NODE_FAIL")]) == ()
    with pytest.raises(OpsctlError, match=r"job 12 of ann.*--after auto"):
        waits(paths)  # that Slurm does not know the job says nothing
    at = time.time() - SILENT_S - 5
    os.utime(paths.lease, (at, at))
    assert waits(paths) == ()


def test_a_lease_that_cannot_be_read_refuses_in_a_line(paths: RunPaths) -> None:
    paths.lease.unlink()
    paths.lease.symlink_to("elsewhere")
    with pytest.raises(OpsctlError, match=r"tiny .*lease\.jsonl: .*link"):
        waits(paths)
