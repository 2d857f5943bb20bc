from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from opsctl.cli.metrics import command
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.metrics import RUN_LABELS, Reading, metrics_text
from opsctl.monitoring.runner import gather
from opsctl.monitoring.snapshot import Part, Snapshot, Space
from opsctl.run.state.alert_log import ChannelSeen
from tests.unit.monitoring.jobs import HELD, NOW, RUNNING
from tests.unit.monitoring.run_folder import slurm, troubled_run

HOSTILE = 'a "quote"} 1\n# EOF\nopsctl_loss 0\\ \x1b[31m\u202e\udc80'


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """(name, labels without run and output) -> value, as a Prometheus reads it."""
    return {
        (one.name, tuple(sorted((k, v) for k, v in one.labels.items() if k not in RUN_LABELS))): one.value
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        for one in family.samples
    }


def test_what_is_seen_and_found_is_read_back_by_a_prometheus() -> None:
    space = Space("/scratch", NOW, used_bytes=5, limit_bytes=10, how="statvfs")
    seen = Snapshot(NOW, jobs=(RUNNING, HELD), spaces=(space,), channels=(ChannelSeen("mail", NOW, "refused", 3),))
    finding = Finding("nodes", Severity.CRITICAL, "is down", subject="node1")
    fine = Finding("training", Severity.OK, "runs")
    found = samples(metrics_text([Reading("demo", "/o", "running", seen, [finding, fine])], 0.25))
    assert found["opsctl_state", (("state", "running"),)] == 1
    assert found["opsctl_finding", (("check", "nodes"), ("severity", "critical"), ("subject", "node1"))] == 1
    assert not any(("check", "training") in labels for _, labels in found)
    assert [found["opsctl_jobs", (("phase", one),)] for one in ("running", "pending", "held")] == [1, 0, 1]
    of_scratch = (("how", "statvfs"), ("name", "/scratch"))
    assert found["opsctl_space_used_bytes", of_scratch] == 5 and found["opsctl_space_used_ratio", of_scratch] == 0.5
    assert found["opsctl_alerts_waiting", (("channel", "mail"),)] == 3
    assert (
        found["opsctl_look_seconds", ()] == 0.25 and found["opsctl_looked_at_timestamp_seconds", ()] == NOW.timestamp()
    )


def test_what_is_not_known_has_no_sample_and_a_slurm_that_does_not_answer_has_no_jobs() -> None:
    names = {
        name for name, _ in samples(metrics_text([Reading("demo", "/o", "unknown", Snapshot(NOW, blind="no"), [])], 0))
    }
    assert not names & {"opsctl_loss", "opsctl_jobs", "opsctl_iteration", "opsctl_checkpoint_age_seconds"}
    assert "opsctl_slurm_reachable" in names
    unreadable = samples(metrics_text([Reading("gone", "", "unreadable", None, [])], 0))
    assert unreadable["opsctl_state", (("state", "unreadable"),)] == 1


def test_hostile_names_stay_labels_and_steer_no_terminal() -> None:
    seen = Snapshot(NOW, spaces=(Space(HOSTILE, NOW, used_bytes=1),))
    finding = Finding("nodes", Severity.WARNING, "x", subject=HOSTILE)
    text = metrics_text([Reading(HOSTILE, HOSTILE, HOSTILE, seen, [finding])], 0)
    assert text.replace("\n", "").isprintable() and text.count("# EOF\n") == 1
    assert len(samples(text)) == len([line for line in text.splitlines() if not line.startswith("#")])
    assert ("opsctl_loss", ()) not in samples(text)


def test_two_runs_of_one_name_are_two() -> None:
    readings = [Reading("demo", folder, "running", Snapshot(NOW), []) for folder in ("/a", "/b")]
    outputs = [
        one.labels["output"]
        for family in text_string_to_metric_families(metrics_text(readings, 0))  # type: ignore[no-untyped-call]
        for one in family.samples
        if one.name == "opsctl_state"
    ]
    assert outputs == ["/a", "/b"]


def test_a_real_run_has_its_numbers(tmp_path: Path) -> None:
    run, job = troubled_run(tmp_path)
    seen = replace(gather(run, slurm([job]), Part.ALL), now=NOW)
    found = samples(metrics_text([Reading("tiny", "/o", "running", seen, [])], 0))
    assert (found["opsctl_iteration", ()], found["opsctl_loss", ()], found["opsctl_attempts", ()]) == (7, 5, 2)


def test_the_command_prints_them_or_replaces_a_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run, _ = troubled_run(tmp_path / "run")
    before = sorted(run.paths.output.rglob("*"))
    answer = CliRunner().invoke(command, [str(tmp_path / "run" / "run.toml")])
    assert answer.exit_code == 0, answer.output
    assert ("opsctl_kill_switch", ()) not in samples(answer.stdout)
    assert any(("check", "kill_switch") in labels for _, labels in samples(answer.stdout))
    target = tmp_path / "opsctl.prom"
    target.write_text("old")
    assert CliRunner().invoke(command, [str(tmp_path / "run"), "--output", str(target)]).exit_code == 0
    assert samples(target.read_text())["opsctl_iteration", ()] == 7
    assert target.stat().st_mode & 0o777 == 0o644 and [one.name for one in tmp_path.glob("*.prom*")] == ["opsctl.prom"]
    assert sorted(one for one in run.paths.output.rglob("*") if one.name != "walk.json") == before
    (shared := tmp_path / "tmp").mkdir()
    shared.chmod(0o1777)  # as /tmp
    assert CliRunner().invoke(command, [str(tmp_path / "run"), "--output", str(shared / "x.prom")]).exit_code == 0
    assert samples((shared / "x.prom").read_text())["opsctl_iteration", ()] == 7
