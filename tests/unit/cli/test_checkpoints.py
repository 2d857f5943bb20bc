"""`opsctl checkpoints`, and what the other commands say when the latest is missing or damaged."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from datetime import datetime
from pathlib import Path

import pytest

from opsctl.core.account import account_and_host
from opsctl.run.checkpoints.inventory import latest_problem
from opsctl.run.config.locate import remember_run
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import lease
from opsctl.run.state.register import all_runs, cron_folder, register
from tests.printed_json import printed
from tests.tiny_run import write_checkpoint, write_run
from tests.unit.cli.called import go_into, opsctl
from tests.unit.jobs.control.checkpoint_runs import care_run, save, there
from tests.unit.jobs.control.test_rollback import curve, write_curve


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with two checkpoints, whose `latest` is gone."""
    write_run(tmp_path)
    write_checkpoint(tmp_path, 10, 80)
    write_checkpoint(tmp_path, 20, 160)
    (tmp_path / "output" / "checkpoints" / "latest").unlink()
    return go_into(tmp_path, monkeypatch)


def test_the_list_shows_them_and_says_that_there_is_no_latest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("checkpoints", "list", "--json") == 0
    answer = capsys.readouterr()
    found = printed("checkpoints list", answer.out)
    assert [(one["iteration"], one["latest"]) for one in found] == [(10, False), (20, False)]
    assert "latest" in answer.err and answer.err.count("\n") == 1
    assert opsctl("checkpoints", "list") == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("words", [("submit",), ("submit", "--dry-run"), ("revise",), ("revise", "--dry-run")])
def test_no_training_starts_from_nothing_beside_checkpoints(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert opsctl(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"latest\b.*\bglobal_step20: opsctl checkpoints repoint\b", line)


def test_status_says_it_instead_of_none_yet(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "output" / "logs").mkdir()
    (folder / "output" / "logs" / "main_log.txt").write_text(
        " iteration       20/ 500 | consumed samples:          160 | consumed tokens:         2560 | elapsed time per "
        "iteration (s): 1.00 | learning rate: 1.000E-03 | global batch size: 8 | lm loss: 5.0E+00 | grad norm: 1.0 |\n"
    )
    opsctl("status")
    screen = " ".join(capsys.readouterr().out.split())
    assert "critical" in screen and "opsctl checkpoints repoint" in screen
    opsctl("status", "--json")
    status = printed("status", capsys.readouterr().out)
    assert status["checkpoint"] is None and "latest" in status["checkpoint_problem"]


def test_a_file_of_the_latest_that_was_cut_is_refused_as_well(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = folder / "output" / "checkpoints" / "global_step20"
    manifest = (saved / "manifest.json").read_text()
    entry = '"files": {"a.pt": {"bytes": 10, "xxh64": "0123456789abcdef"}}'
    (saved / "manifest.json").write_text(manifest.replace('"files": {}', entry))
    (saved / "a.pt").write_bytes(b"123456789")
    (saved.parent / "latest").write_text(saved.name)
    assert opsctl("submit") == 2
    assert re.search(r"\ba\.pt\b.*\b9 bytes\b.*\b10\b.*\bglobal_step10\b", capsys.readouterr().err)
    assert opsctl("checkpoints", "list") == 0
    assert re.search(r"\ba\.pt\b.*\b9 bytes\b.*\b10\b.*\blatest\b", capsys.readouterr().out)


def latest(folder: Path) -> str:
    return (folder / "output" / "checkpoints" / "latest").read_text()


def rollbacks(folder: Path) -> list[dict[str, object]]:
    path = folder / "output" / "checkpoints" / "rollbacks.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_repoint_chooses_the_newest_complete_one_and_puts_it_on_record(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "output" / "checkpoints" / "global_step20" / "manifest.json").write_text("{}")
    assert opsctl("checkpoints", "repoint", "--dry-run") == 0
    assert capsys.readouterr().out == "global_step10\n" and rollbacks(folder) == []
    assert opsctl("checkpoints", "repoint", "--reason", "disk \x1b[2J died", "--json") == 0
    answer = capsys.readouterr()
    assert printed("checkpoints repoint", answer.out) == {"from": None, "to": 10, "changed": True, "dry_run": False}
    assert latest(folder) == "global_step10"
    (line,) = rollbacks(folder)
    assert (line["from"], line["to"], line["why"]) == (None, 10, "disk \\x1b[2J died")
    assert line["by"] == account_and_host() and datetime.fromisoformat(str(line["at"])).tzinfo is not None
    assert latest_problem(folder / "output" / "checkpoints") is None
    assert opsctl("checkpoints", "repoint") == 0
    assert "global_step10" in capsys.readouterr().err and len(rollbacks(folder)) == 1


def test_repoint_goes_back_to_the_one_that_was_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("checkpoints", "repoint") == 0 and latest(folder) == "global_step20"
    assert opsctl("checkpoints", "repoint", "--to", "10") == 0 and latest(folder) == "global_step10"
    assert [(line["from"], line["to"]) for line in rollbacks(folder)] == [(None, 20), (20, 10)]
    for words, said in (
        (("--to", "30"), r"global_step30.*opsctl checkpoints list"),
        (("--to", "20"), r"global_step20\b.*\bmanifest\.json"),
    ):
        (folder / "output" / "checkpoints" / "global_step20" / "manifest.json").unlink(missing_ok=True)
        capsys.readouterr()
        assert opsctl("checkpoints", "repoint", *words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert re.search(said, line) and latest(folder) == "global_step10"


def test_repoint_without_any_checkpoint_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(folder / "output")
    assert opsctl("checkpoints", "repoint", "--dry-run") == 1
    assert opsctl("checkpoints", "list") == 0
    (folder / "output" / "checkpoints" / "global_step7").mkdir(parents=True)
    capsys.readouterr()
    assert opsctl("checkpoints", "repoint") == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_repoint_refuses_beside_a_training_and_overtakes_one_that_is_silent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(folder / "output")
    training = lease.take(paths, "an attempt", 12, "ana", lambda _: None)
    assert isinstance(training, lease.OwnLease)
    for words in ((), ("--dry-run",)):
        assert opsctl("checkpoints", "repoint", *words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert re.search(r"\btiny\b.*\bjob 12\b.*\bana\b", line)
    assert not (paths.checkpoints / "latest").exists() and rollbacks(folder) == []
    old = time.time() - 200
    os.utime(paths.lease, (old, old))
    assert opsctl("checkpoints", "repoint") == 0 and latest(folder) == "global_step20"
    assert training.beat() is not None  # whatever is left of it publishes no more
    assert lease.look(paths).holder is None


def test_repoint_writes_through_no_link(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "thesis.txt").write_text("thesis")
    (folder / "output" / "checkpoints" / "rollbacks.jsonl").symlink_to(folder / "thesis.txt")
    assert opsctl("checkpoints", "repoint") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "rollbacks.jsonl" in line and "link" in line
    assert (folder / "thesis.txt").read_text() == "thesis"
    assert not (folder / "output" / "checkpoints" / "latest").exists()


class TestCare:
    """`prune` and `rollback`, typed."""

    @pytest.fixture
    def run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        care_run(tmp_path)
        for iteration in (10, 20, 30, 40):
            save(tmp_path, iteration)
        return go_into(tmp_path, monkeypatch)

    def test_a_prune_says_what_goes_and_why_the_rest_stays_and_removes_nothing_unasked(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for words in ((), ("--dry-run",)):
            assert opsctl("checkpoints", "prune", *words) == 0
            said = capsys.readouterr().err
            assert "global_step10 (" in said
            assert re.search(r"^.*global_step40 \(.*\blatest\b.*\b2$", said, re.MULTILINE), "its reasons"
        assert there(run) == [10, 20, 30, 40]
        assert opsctl("checkpoints", "prune", "--yes", "--json") == 0
        (answer,) = printed("checkpoints prune", capsys.readouterr().out)
        assert (answer["pruned"], list(answer["kept"]), answer["problems"]) == ([10, 20], ["30", "40"], [])
        assert there(run) == [30, 40]
        assert opsctl("checkpoints", "prune", "--yes", "--dry-run") == 2

    def test_a_prune_that_could_not_remove_all_of_it_says_what_is_left_and_exits_1(
        self, run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stuck(name: str, **_how: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied", name)

        with monkeypatch.context() as held:
            held.setattr("opsctl.jobs.control.prune.shutil.rmtree", stuck)
            assert opsctl("checkpoints", "prune", "--yes", "--json") == 1
        answer = capsys.readouterr()
        (told,) = printed("checkpoints prune", answer.out)
        assert told["pruned"] == [] and len(told["problems"]) == 2
        assert re.search(r"global_step10\b.*Permission denied", answer.err) and there(run) == [30, 40]
        assert opsctl("checkpoints", "prune", "--yes", "--json") == 0, "the next one goes on"
        assert printed("checkpoints prune", capsys.readouterr().out)[0]["pruned"] == [10, 20]

    def test_the_cron_job_prunes_what_has_a_policy_and_leaves_others_alone(
        self, run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        other = tmp_path / "other"
        write_run(other, name="other")
        write_checkpoint(other, 10, 80)
        remember_run("tiny", run / "run.toml")
        remember_run("other", other / "run.toml")
        remember_run("gone", tmp_path / "gone" / "run.toml")
        foreign = tmp_path / "foreign"  # on the cron folder's list, and nothing that this account has used
        run_file = care_run(foreign)
        for iteration in (10, 20, 30, 40):
            save(foreign, iteration)
        cron_folder().mkdir(parents=True)
        register("foreign", run_file, RunPaths(foreign / "output"))
        assert str(run_file) in {one.run_file for one in all_runs()}
        assert opsctl("checkpoints", "prune", "--all-runs", "--yes", "--json") == 0
        assert [one["run"] for one in printed("checkpoints prune", capsys.readouterr().out)] == ["tiny"]
        assert there(run) == [30, 40] and there(other) == [10] and there(foreign) == [10, 20, 30, 40]

    def test_a_rollback_and_its_undoing(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert opsctl("checkpoints", "rollback", "--to", "20", "--reason", "a spike", "--json") == 0
        told = capsys.readouterr()
        answer = printed("checkpoints rollback", told.out)
        assert (answer["from"], answer["to"], answer["checkpoints"], answer["number"]) == (40, 20, [30, 40], 1)
        assert re.search(r"\bglobal_step40\b.*\bglobal_step20\b.*\b2 checkpoints\b.*\b0 event files\b", told.err)
        assert opsctl("on-call", "--since", "1h") in (0, 1)
        assert "a spike" in capsys.readouterr().out
        assert opsctl("checkpoints", "rollback", "--undo") == 0
        assert there(run) == [10, 20, 30, 40]
        assert re.search(r"\b2 checkpoints\b.*\b0 event files\b", capsys.readouterr().err)
        assert opsctl("checkpoints", "rollback", "--undo") == 1 and there(run) == [10, 20, 30, 40]
        assert opsctl("checkpoints", "rollback") == opsctl("checkpoints", "rollback", "--to", "1", "--undo") == 2

    def test_curves_are_read_by_the_trainers_program(self, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        name = write_curve(run, 1, 30, 2.0)
        assert opsctl("checkpoints", "rollback", "--to", "20", "--json") == 0
        assert printed("checkpoints rollback", capsys.readouterr().out)["events"] == [name]
        assert [step for step, _ in curve(run)] == list(range(1, 21))

    def test_show_tells_of_the_latest_or_of_the_one_that_is_named(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert opsctl("checkpoints", "show") == 0
        assert "global_step40 (the latest)" in capsys.readouterr().out
        assert opsctl("checkpoints", "show", "--step", "20", "--json") == 0
        assert printed("checkpoints show", capsys.readouterr().out)["iteration"] == 20
        assert opsctl("checkpoints", "show", "--step", "25") == 1
        assert "global_step25" in capsys.readouterr().err

    def test_verify_reads_the_bytes_and_exits_1_where_one_is_flipped(
        self, run: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert opsctl("checkpoints", "verify", "--json") == 0
        (answer,) = printed("checkpoints verify", capsys.readouterr().out)
        assert (answer["files"], answer["problems"]) == (2, [])
        weights = run / "output" / "checkpoints" / "global_step20" / "layer_01-model_00-model_states.pt"
        weights.write_bytes(weights.read_bytes()[:-1] + b"!")
        assert opsctl("checkpoints", "verify") == 0
        assert opsctl("checkpoints", "verify", "--all", "--workers", "2") == 1
        assert f"global_step20: {weights.name} " in capsys.readouterr().err
        assert opsctl("checkpoints", "verify", "--all", "--step", "20") == 2
