"""Many runs in one look."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from opsctl.cli.watch import command
from opsctl.core.process import Said, ask
from opsctl.monitoring import all_runs as module
from opsctl.monitoring.all_runs import RunSnapshot, findings_in, printed_run, run_lines, snapshot_all
from opsctl.monitoring.check import Detector
from opsctl.monitoring.finding import Finding, Severity, exit_code
from opsctl.monitoring.registry import DETECTORS
from opsctl.monitoring.runner import settings_of
from opsctl.monitoring.snapshot import Part
from opsctl.run.config.load import load_run_file
from opsctl.run.config.locate import remember_run
from opsctl.run.state.group_folder import open_output
from opsctl.run.state.register import KnownRun
from opsctl.run.state.revisions import publish
from opsctl.run.state.run_view import view_known
from opsctl.slurm.cluster import Cluster
from tests.cluster.commands import open_folder
from tests.tiny_run import expand, write_run
from tests.unit.monitoring.run_folder import StandIn, troubled_run
from tests.users import as_user

PARTS = Part.ALL | Part.PARTITION | Part.SERIES | Part.FILES


def known(folder: Path, with_output: bool = True) -> KnownRun:
    output = str(folder / "output") if with_output else ""
    return KnownRun(name=folder.name, run_file=str(folder / "run.toml"), output=output)


def looks(runs: list[KnownRun], slurm: StandIn | None = None) -> list[RunSnapshot]:
    client = slurm or StandIn([])
    return snapshot_all(runs, lambda _: Cluster(), lambda _: client, PARTS)  # type: ignore[arg-type, return-value]


def test_all_runs_together_ask_slurm_as_often_as_one(tmp_path: Path) -> None:
    jobs = []
    for name in ("a", "b", "c"):
        _, job = troubled_run(tmp_path / name)
        jobs.append(job)
    slurm = StandIn(jobs)
    found = looks([known(tmp_path / name) for name in ("a", "b", "c")], slurm)
    assert [one.snapshot.jobs for one in found if one.snapshot] == [(job,) for job in jobs]
    assert slurm.questions == 2  # one for the queue, one for the nodes
    assert all(one.snapshot and one.snapshot.nodes and one.snapshot.problems == () for one in found)


def test_a_run_that_cannot_be_looked_at_is_a_finding_and_stops_no_other(tmp_path: Path) -> None:
    for name in ("broken", "gone", "well"):
        write_run(tmp_path / name)
        (tmp_path / name / "output").mkdir()
    (tmp_path / "broken" / "run.toml").write_text("[run\n")
    shutil.rmtree(tmp_path / "gone")
    found = looks([known(tmp_path / name) for name in ("broken", "gone", "well")])
    said = [[(one.check, one.severity) for one in findings_in(look, DETECTORS)] for look in found]
    assert said == [[("run", Severity.UNKNOWN)], [("run", Severity.WARNING)], []]
    assert "run.toml" in found[0].problem and "neither" in found[1].problem


def test_a_run_that_only_this_account_knew_and_that_is_gone_is_no_news(tmp_path: Path) -> None:
    assert looks([known(tmp_path / "tried once", with_output=False)]) == []


def test_one_folder_is_looked_at_once_however_many_run_files_name_it(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    shutil.copy(tmp_path / "run" / "run.toml", tmp_path / "run" / "second.toml")
    second = KnownRun(name="run", run_file=str(tmp_path / "run" / "second.toml"), output="")
    assert len(looks([known(tmp_path / "run"), second])) == 1


def test_a_fault_of_ours_in_one_run_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name)
    found = looks([known(tmp_path / name) for name in ("a", "b")])

    def divide(*_: object) -> list[Finding]:
        raise ZeroDivisionError("division by zero")

    (first, second) = (findings_in(one, [Detector("new", divide, Part.LOG)]) for one in found)
    assert first[0].severity is second[0].severity is Severity.UNKNOWN and "ZeroDivisionError" in first[0].text

    def view_of(run_file: Path, output: Path | None) -> object:
        if run_file.parent.name == "a":
            raise KeyError("oh")
        return view_known(run_file, output)

    monkeypatch.setattr(module, "view_known", view_of)
    a, b = looks([known(tmp_path / name) for name in ("a", "b")])
    assert "KeyError" in a.problem and b.snapshot is not None


def test_runs_on_a_hanging_file_system_are_problems_and_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name)
    asked: list[str] = []

    def hanging(command: Sequence[str], _: float) -> Said:
        # A stand-in: no file system that hangs is to be had here, so who asks for one sleeps.
        asked.append(command[-1])
        return ask(["sleep", "60"], 0.2)

    monkeypatch.setattr("opsctl.core.dirwalk.file_system.ask", hanging)
    found = looks([known(tmp_path / name) for name in ("a", "b")])
    assert [bool(one.problem) for one in found] == [True, True]
    assert len(asked) == 1


def test_findings_are_grouped_by_run_the_worst_first_and_healthy_runs_share_a_line(
    golden: Callable[[str, str], None],
) -> None:
    warning = Finding("silence", Severity.WARNING, "no iteration for 20 min", todo="opsctl logs")
    critical = Finding("nodes", Severity.CRITICAL, "node1 is down", subject="node1")
    fine = Finding("training", Severity.OK, "runs")
    found = [
        (RunSnapshot(name, Path("/o") / name), list(findings))
        for name, findings in (("a", [fine]), ("b", [warning]), ("c", [fine]), ("d", [fine, warning, critical]))
    ]
    blind = [Finding(check, Severity.UNKNOWN, "Slurm does not answer") for check in ("training", "queue")]
    found.append((RunSnapshot("e", Path("/o/e")), blind))
    lines = run_lines(found)
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["d", "e", "b", "ok:"]
    golden("watch/all_runs.txt", "\n".join(lines) + "\n")


def test_the_command_checks_every_known_run_and_exits_with_the_worst_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("a", "b"):
        remember_run(name, write_run(tmp_path / name, name=name))
    run, _ = troubled_run(tmp_path / "c")
    remember_run("c", tmp_path / "c" / "run.toml")
    before = run.paths.main_log.read_text()
    answer = CliRunner().invoke(command, ["all", "--all-runs", "--no-log", "--json"])
    found = {one["name"]: one for one in json.loads(answer.output)["runs"]}
    assert found["a"]["findings"] == [] and found["a"]["worst"] == "ok"
    assert {"kill_switch", "no_progress", "unpublished"} <= {one["check"] for one in found["tiny"]["findings"]}
    assert found["tiny"]["worst"] == "critical"
    assert answer.exit_code == 2  # though no one can be asked about the jobs of the one that was submitted
    assert run.paths.main_log.read_text() == before
    *_, healthy, last = CliRunner().invoke(command, ["all", "--all-runs"]).stdout.splitlines()
    assert healthy == "ok: a, b"
    assert last.startswith(f"{3 * len(DETECTORS)} checks of 3 runs: ") and "not able to look" in last
    assert "kill switch" in run.paths.main_log.read_text().removeprefix(before)
    assert CliRunner().invoke(command, ["all", "--all-runs", "c"]).exit_code == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="being another Unix user needs root")
def test_a_run_whose_file_is_closed_to_the_reader_is_seen_by_its_folder() -> None:
    with tempfile.TemporaryDirectory(prefix="or", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        run = load_run_file(write_run(folder, name="anas", group="nogroup"))
        open_output(run.paths, "nogroup")
        publish(expand(run))
        run.path.chmod(0o600)

        def seen() -> tuple[str, bool, bool]:
            os.environ["HOME"] = "/nonexistent"
            (look,) = looks([known(folder)])
            assert look.run is not None and look.snapshot is not None, look.problem
            assert settings_of(look.run).nodes == 2  # as published
            return look.name, look.run.loaded is None, look.snapshot.published is not None

        assert as_user("nobody", seen) == ("anas", True, True)


def test_a_check_that_cannot_see_hides_no_alarm_of_another(tmp_path: Path) -> None:
    unknown = Finding("nodes", Severity.UNKNOWN, "sinfo does not answer")
    critical = Finding("training", Severity.CRITICAL, "is not there")
    warning = Finding("queue", Severity.WARNING, "one is missing")
    assert exit_code([unknown, critical, warning]) == 2
    assert exit_code([warning, unknown]) == 3
    assert exit_code([warning]) == 1 and exit_code([]) == 0
    blind, dead = RunSnapshot("blind", tmp_path), RunSnapshot("dead", tmp_path)
    lines = run_lines([(blind, [unknown]), (dead, [warning, critical])])
    assert lines[0].startswith("dead") and "critical" in lines[1]
    assert printed_run(dead, [unknown, critical]).worst == "critical"


def test_a_run_file_that_somebody_put_on_the_list_has_nobody_look_into_folders_of_his_own(
    unix_user: Callable[..., str],
) -> None:
    group = f"ocplant{os.getpid()}"
    ana, mallory = unix_user("ana", groups_of=[group]), unix_user("mallory", groups_of=[group])
    with open_folder() as base:
        base.chmod(0o1777)
        as_user(ana, lambda: (base / "private").mkdir(mode=0o700))
        secret = base / "private" / "letter-to-the-bank"
        as_user(ana, secret.touch)
        os.utime(secret, (1, 1))

        def plant(output: str) -> None:
            (base / "m").mkdir(exist_ok=True)
            path = write_run(base / "m")
            text = re.sub(r"output = .*", f'output = "{output}"', path.read_text())
            path.write_text(f'{text}\n[watch]\npurge_days = 30\n[alerts]\nchannels = ["json://127.0.0.1:9/"]\n')

        def seen() -> tuple[str, bool]:
            os.environ["HOME"] = str(base)
            (look,) = looks([known(base / "m", with_output=False)])
            return look.problem, look.snapshot is not None

        for output in (str(base / "private"), str(base / "link"), "/", "/root", "/etc"):
            if output.endswith("link"):
                as_user(mallory, lambda: (base / "link").symlink_to(base / "private"))
            as_user(mallory, partial(plant, output))
            problem, was_looked_at = as_user(ana, seen)
            assert not was_looked_at, (output, problem)
            assert mallory in problem or "ermission" in problem
        assert [path.name for path in (base / "private").iterdir()] == ["letter-to-the-bank"]
        as_user(mallory, partial(plant, str(base / "m" / "output")))
        as_user(mallory, lambda: (base / "m" / "output").mkdir(mode=0o755))
        assert as_user(ana, seen) == ("", True)  # her own is looked at like any
