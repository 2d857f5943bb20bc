"""The checkpoint from which a task would resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.run.checkpoints.inventory import Checkpoint, last_checkpoint, latest_problem
from tests.tiny_run import write_checkpoint


def save(folder: Path, iteration: int, samples: int, tag: str | None = None) -> None:
    step = folder / f"global_step{iteration}"
    step.mkdir(parents=True)
    manifest = {"schema_version": 1, "iteration": iteration, "consumed_train_samples": samples}
    (step / "manifest.json").write_text(json.dumps(manifest))
    (folder / "latest").write_text(tag or step.name)


def test_latest_names_the_last_checkpoint(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    save(tmp_path, 10, 40)
    save(tmp_path, 20, 80)
    assert last_checkpoint(tmp_path) == Checkpoint(tmp_path / "global_step20", 20, 80)


@pytest.mark.parametrize(
    "tag",
    ["", "global_step99", "../elsewhere/global_step5", "../global_step10", "main", "global_step10\nglobal_step20"],
)
def test_a_latest_that_names_no_whole_checkpoint_counts_as_none(tmp_path: Path, tag: str) -> None:
    save(tmp_path / "elsewhere", 5, 20)
    save(tmp_path / "checkpoints", 10, 40)
    (tmp_path / "checkpoints" / "latest").write_text(tag)
    assert last_checkpoint(tmp_path / "checkpoints") is None


@pytest.mark.parametrize("manifest", ["", "[]", '{"iteration": "x"}', "null"])
def test_a_damaged_manifest_counts_as_none(tmp_path: Path, manifest: str) -> None:
    save(tmp_path, 10, 40)
    (tmp_path / "global_step10" / "manifest.json").write_text(manifest)
    assert last_checkpoint(tmp_path) is None


def test_no_checkpoint_yet_is_no_problem(tmp_path: Path) -> None:
    assert latest_problem(tmp_path / "checkpoints") is None
    (tmp_path / "checkpoints").mkdir()
    assert latest_problem(tmp_path / "checkpoints") is None


def test_a_whole_latest_is_no_problem(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 10, 80)
    assert latest_problem(tmp_path / "output" / "checkpoints") is None


@pytest.mark.parametrize("latest", [None, "", "global_step99", "\x1b[2Jmain"])
def test_a_latest_that_cannot_be_gone_on_from_is_said_with_the_way_out(tmp_path: Path, latest: str | None) -> None:
    write_checkpoint(tmp_path, 10, 80)
    write_checkpoint(tmp_path, 20, 160)
    pointer = tmp_path / "output" / "checkpoints" / "latest"
    pointer.unlink()
    if latest is not None:
        pointer.write_text(latest)
    problem = latest_problem(pointer.parent) or ""
    assert problem.startswith(str(pointer)) and problem.isprintable()
    assert "global_step20" in problem and "opsctl checkpoints repoint" in problem


def test_a_damaged_manifest_of_the_latest_is_said_with_an_older_one_to_go_on_from(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 10, 80)
    write_checkpoint(tmp_path, 20, 160)
    manifest = tmp_path / "output" / "checkpoints" / "global_step20" / "manifest.json"
    manifest.write_text(manifest.read_text()[:-20])
    problem = latest_problem(manifest.parent.parent) or ""
    assert problem.startswith(str(manifest)) and "global_step10" in problem
