"""Checkpoints that `checkpoints verify` found damaged: no command takes them for complete."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from opsctl.run.checkpoints.inventory import latest_problem
from opsctl.run.config.paths import RunPaths
from tests.printed_json import printed
from tests.unit.cli.called import go_into, opsctl
from tests.unit.jobs.control.checkpoint_runs import care_run, latest, save, seen, there
from trainer.formats.checkpoint.exchanged import VERIFIED
from trainer.formats.checkpoint.manifest import newest_complete
from trainer.formats.checkpoint.starting import fall_back, found_at_start, named_checkpoint
from trainer.formats.errors import CheckpointError

WEIGHTS = "layer_01-model_00-model_states.pt"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that keeps its last two, with eight checkpoints. A byte of each of the two newest is flipped."""
    folder = tmp_path / "run"
    folder.mkdir()
    care_run(folder)
    for iteration in range(10, 90, 10):
        save(folder, iteration)
    for iteration in (70, 80):
        flip(folder, iteration)
    return go_into(folder, monkeypatch)


def weights(folder: Path, iteration: int) -> Path:
    return folder / "output" / "checkpoints" / f"global_step{iteration}" / WEIGHTS


def flip(folder: Path, iteration: int) -> None:
    data = bytearray(weights(folder, iteration).read_bytes())
    data[7] ^= 1
    weights(folder, iteration).write_bytes(data)


def complete(capsys: pytest.CaptureFixture[str]) -> list[int]:
    capsys.readouterr()
    assert opsctl("checkpoints", "list", "--json") == 0
    return [one["iteration"] for one in printed("checkpoints list", capsys.readouterr().out) if one["complete"]]


def test_what_verify_found_damaged_is_incomplete_for_every_command(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert len(complete(capsys)) == 8
    assert opsctl("checkpoints", "verify", "--all") == 1
    assert complete(capsys) == [10, 20, 30, 40, 50, 60]
    assert opsctl("checkpoints", "prune", "--yes") == 1
    assert len(there(run)) == 8
    assert opsctl("submit", "--dry-run") == 2
    opsctl("status", "--json")
    assert "global_step80" in printed("status", capsys.readouterr().out)["checkpoint_problem"]
    for command in ("rollback", "repoint"):
        assert opsctl("checkpoints", command, "--to", "70", "--dry-run") == 1
    (tmp_path / "copies").mkdir()
    steps = ("--step", "60", "--step", "70")
    assert opsctl("checkpoints", "backup", "--to", str(tmp_path / "copies"), *steps, "--json") == 1
    (sent,) = printed("checkpoints backup", capsys.readouterr().out)
    assert [one["iteration"] for one in sent["sent"]] == [60] and list(sent["left"]) == ["70"]
    assert opsctl("checkpoints", "repoint") == 0 and latest(run) == "global_step60"


def test_prune_keeps_two_checkpoints_that_no_check_found_damaged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opsctl("checkpoints", "verify", "--all") == 1
    assert opsctl("checkpoints", "repoint") == 0
    flip(run, 50)
    assert opsctl("checkpoints", "verify", "--step", "50") == 1
    assert opsctl("checkpoints", "prune", "--yes") == 0
    assert there(run) == [40, 50, 60, 70, 80] and complete(capsys) == [40, 60]


def test_the_trainer_starts_from_no_checkpoint_that_a_check_found_damaged(run: Path) -> None:
    checkpoints = run / "output" / "checkpoints"
    opsctl("checkpoints", "verify", "--all")
    options = {"load": str(checkpoints), "save": str(checkpoints), "load_step": None, "load_fallback": False}
    with pytest.raises(CheckpointError, match=r"global_step80 .*global_step60"):
        found_at_start(options)
    with pytest.raises(CheckpointError, match="global_step70"):
        named_checkpoint(checkpoints, 70)
    fallen_back = found_at_start({**options, "load_fallback": True})
    assert fallen_back is not None and fallen_back.folder.name == "global_step60"


def test_a_repaired_checkpoint_is_complete_again_once_it_is_verified(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opsctl("checkpoints", "verify", "--all")
    flip(run, 80)
    assert 80 not in complete(capsys)
    assert opsctl("checkpoints", "verify", "--step", "80") == 0
    assert complete(capsys)[-1] == 80
    opsctl("checkpoints", "list", "--json")
    at = {one["iteration"]: one["verified_at"] for one in printed("checkpoints list", capsys.readouterr().out)}
    assert all(at.values()), "every one was verified"
    save(run, 90)
    opsctl("checkpoints", "list", "--json")
    assert printed("checkpoints list", capsys.readouterr().out)[-1]["verified_at"] is None


def test_a_check_of_an_earlier_save_is_not_about_a_later_one_of_that_name(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opsctl("checkpoints", "verify", "--all")
    save(run, 80, consumed_valid_samples=1)
    assert (weights(run, 80).parent / VERIFIED).is_file()
    assert complete(capsys)[-1] == 80
    found = newest_complete(run / "output" / "checkpoints")
    assert found is not None and found.folder.name == "global_step80"


def test_a_check_says_when_and_with_which_manifest_it_was_made(run: Path) -> None:
    opsctl("checkpoints", "verify")
    record = json.loads((weights(run, 80).parent / VERIFIED).read_text())
    assert record["problems"] and record["at"] and len(record["manifest_xxh64"]) == 16
    assert not (weights(run, 10).parent / VERIFIED).exists(), "it was not checked"


def test_a_rollback_and_its_undoing_keep_what_a_check_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opsctl("checkpoints", "verify", "--all")
    assert opsctl("checkpoints", "rollback", "--to", "60") == 0
    assert complete(capsys)[-1] == 60
    assert opsctl("checkpoints", "rollback", "--undo") == 0
    assert complete(capsys)[-1] == 60 and there(run)[-1] == 80


def test_damage_that_could_not_be_put_on_record_is_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (weights(run, 80).parent / VERIFIED).mkdir()
    assert opsctl("checkpoints", "verify") == 1
    assert VERIFIED in capsys.readouterr().err
    assert 80 not in complete(capsys), "what cannot be read does not pass for sound"
    shutil.rmtree(weights(run, 80).parent / VERIFIED)
    assert RunPaths(run / "output").checkpoints == seen(run).paths.checkpoints


def test_a_record_that_cannot_be_read_stops_no_training(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    care_run(folder)
    record = save(folder, 10) / VERIFIED
    checkpoints = folder / "output" / "checkpoints"
    options = {"load": str(checkpoints), "save": str(checkpoints), "load_step": None, "load_fallback": False}
    for put in (record.mkdir, lambda: record.symlink_to(record), lambda: record.write_bytes(b"\0" * (2 << 20))):
        put()
        found = found_at_start(options)
        assert found is not None and found.folder == record.parent
        assert named_checkpoint(checkpoints, 10).folder == record.parent
        assert latest_problem(checkpoints) is None and fall_back(checkpoints, {}) is None
        record.rmdir() if record.is_dir() else record.unlink()
