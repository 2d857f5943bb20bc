"""Test what is gathered of a run, part by part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.core.files.trusted import Untrusted
from opsctl.monitoring.check import Detector
from opsctl.monitoring.checks.records import revision
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.registry import DETECTORS
from opsctl.monitoring.runner import gather, pulse_lines, settings_of
from opsctl.monitoring.snapshot import Part, Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import HELD, NOW, pending
from tests.unit.monitoring.run_folder import StandIn, slurm, troubled_run


def test_one_look_is_one_question_to_slurm_and_one_for_the_running_jobs_nodes(tmp_path: Path) -> None:
    run, job = troubled_run(tmp_path)
    asked, waiting = StandIn([job, HELD]), StandIn([pending("Resources", comment=job.comment), HELD])
    seen = gather(run, asked)  # type: ignore[arg-type]
    assert (asked.questions, seen.jobs, seen.was_submitted) == (2, (job,), True)
    assert [node.name for node in seen.nodes] == [job.nodes]
    assert gather(run, waiting).nodes == () and waiting.questions == 1  # type: ignore[arg-type]


def test_others_chains_are_unseen_where_slurm_hides_them_and_nothing_of_the_run_is_missed(tmp_path: Path) -> None:
    run, _ = troubled_run(tmp_path)
    hiding, open_to_all = StandIn([], hides=True), StandIn([])
    seen = gather(run, hiding)  # type: ignore[arg-type]
    assert [(one.array_job_id, one.user) for one in seen.unseen] == [(10, "ana")]
    assert gather(run, open_to_all).unseen == ()  # type: ignore[arg-type]
    assert hiding.questions == open_to_all.questions == 2


#: Checks that find nothing in the troubled run: what they look for does not go together with the rest.
QUIET = {"must_run", "waiting", "queue", "spare_nodes", "speed", "throughput", "skipped", "channels", "clocks", "purge"}
QUIET |= {"loss_nan", "loss_spike", "loss_stuck", "gradients", "filesystem", "filling", "cron", "cron_jobs"}
QUIET |= {"checkpoint_age", "checkpoint_files", "hub_sync", "backups", "spike_guard", "slow_node"}


@pytest.mark.parametrize(
    "detector", [one for one in DETECTORS if one.name not in QUIET], ids=lambda detector: detector.name
)
def test_a_check_finds_the_same_when_only_what_it_asks_for_is_gathered(detector: Detector, tmp_path: Path) -> None:
    run, job = troubled_run(tmp_path, damaged=detector is revision)
    everything, asked = (gather(run, slurm([job]), parts) for parts in (Part.ALL, detector.needs))
    found = detector.find(everything, settings_of(run))
    assert found and {one.check for one in found} == {detector.name}
    assert detector.find(replace(asked, now=everything.now), settings_of(run)) == found


@pytest.mark.parametrize("part", Part.ALL, ids=lambda part: str(part.name))
def test_a_part_is_gathered_alone_and_every_part_has_something_to_show(part: Part, tmp_path: Path) -> None:
    run, job = troubled_run(tmp_path)
    (run.paths.checkpoints / "global_step3").mkdir(parents=True)
    (run.paths.checkpoints / "latest").write_text("global_step3")
    (run.paths.checkpoints / "global_step3" / "manifest.json").write_text('{"iteration": 3}')
    seen, rest = (gather(run, slurm([job]), parts) for parts in (part, Part.ALL & ~part))
    nothing = Snapshot(seen.now)
    assert seen != nothing
    names = [name for name in vars(seen) if name != "now"]
    of_part = {name for name in names if getattr(seen, name) != getattr(nothing, name)}
    of_others = {name for name in names if getattr(rest, name) != getattr(nothing, name)}
    assert not of_part & of_others


def test_all_else_is_gathered_when_slurm_does_not_answer(tmp_path: Path) -> None:
    run, _ = troubled_run(tmp_path)
    seen = gather(run, slurm(None))
    assert seen.blind is not None and "squeue: no answer" in seen.blind and seen.jobs == ()
    assert seen.was_submitted and len(seen.attempts) == 2


def test_what_nobody_asks_for_cannot_break_a_check(tmp_path: Path) -> None:
    run, job = troubled_run(tmp_path)
    run.paths.attempts.unlink()
    run.paths.attempts.mkdir()
    (training,) = (detector for detector in DETECTORS if detector.name == "training")
    assert gather(run, slurm([job]), training.needs).jobs == (job,)
    with pytest.raises(Untrusted):
        gather(run, slurm([job]))


def test_a_tolerant_snapshot_has_the_other_parts_if_one_cannot_be_read(tmp_path: Path) -> None:
    run, job = troubled_run(tmp_path)
    run.paths.attempts.unlink()
    run.paths.attempts.mkdir()
    seen = gather(run, slurm([job]), is_tolerant=True)
    assert str(run.paths.attempts) in seen.problem_of(Part.ATTEMPTS)
    assert seen.jobs == (job,) and seen.problem_of(Part.ALL & ~Part.ATTEMPTS) == ""


def test_a_run_whose_submissions_cannot_be_read_is_blind_and_never_missed(tmp_path: Path) -> None:
    run, job = troubled_run(tmp_path)
    run.paths.chains.unlink()
    run.paths.chains.mkdir()
    seen = gather(run, slurm([job]), is_tolerant=True)
    assert seen.blind is not None and str(run.paths.chains) in seen.blind and seen.kill_switch is not None
    assert seen.problem_of(Part.QUEUE) == seen.blind


def test_a_training_that_ends_while_slurm_is_asked_is_finished_not_missing(tmp_path: Path) -> None:
    run, _ = troubled_run(tmp_path)

    class Ending(StandIn):
        def jobs(self, *_: object, **__: object) -> list[object]:  # type: ignore[override]
            folder = run.paths.checkpoints / "global_step500"
            folder.mkdir(parents=True)
            (folder.parent / "latest").write_text(folder.name)
            (folder / "manifest.json").write_text('{"iteration": 500, "consumed_train_samples": 4000}')
            return []

    seen = gather(run, Ending([]))  # type: ignore[arg-type]
    assert seen.jobs == () and seen.is_finished


def test_checks_that_are_blind_for_the_same_reason_share_a_line() -> None:
    blind = [Finding(check, Severity.UNKNOWN, "demo cannot be seen: no answer") for check in ("training", "silence")]
    (line,) = pulse_lines(blind, NOW)
    assert missing(line, "PULSE:", "demo", "no answer") == []
