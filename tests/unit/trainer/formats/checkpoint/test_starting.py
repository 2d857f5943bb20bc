"""The checkpoint of a start: the latest, a named one, or a later one that was trained from it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.formats.checkpoint.test_manifest import manifest_of
from trainer.formats.checkpoint.history import Change, Start
from trainer.formats.checkpoint.manifest import tag_of
from trainer.formats.checkpoint.starting import LOAD_STEP, consumed_at_start, found_at_step, step_change
from trainer.formats.errors import CheckpointError


def save(root: Path, iteration: int, *named: int) -> None:
    """Return a checkpoint of 8 samples a step, with a start at each of the `named` ones in its history; the latest."""
    folder = root / tag_of(iteration)
    folder.mkdir(parents=True)
    starts = tuple(
        Start(
            at=datetime(2026, 1, 1, tzinfo=UTC),
            user="ada",
            host="x01",
            kind="resumed",
            iteration=one,
            changes=(Change("lr", 1, 2), Change(LOAD_STEP, None, one)),
        )
        for one in named
    )
    manifest = manifest_of(iteration=iteration, consumed_train_samples=8 * iteration, history=starts)
    (folder / "manifest.json").write_text(json.dumps(manifest.as_json()))
    (root / "latest").write_text(folder.name)


def options(root: Path, step: int | None, save_to: Path | None = None, **more: Any) -> dict[str, Any]:
    return {"load": str(root), "save": str(save_to or root), "load_step": step, "finetune": False, **more}


def start_of(given: dict[str, Any]) -> int:
    return found_at_step(given).manifest.iteration


def test_the_second_task_of_a_chain_goes_on_from_what_came_of_the_named_one(tmp_path: Path) -> None:
    save(tmp_path, 10)
    assert start_of(options(tmp_path, 10)) == 10
    save(tmp_path, 20, 10)
    assert start_of(options(tmp_path, 10)) == 20
    assert consumed_at_start(options(tmp_path, 10)) == 160


def test_what_came_of_another_one_is_not_gone_on_from_and_not_written_over(tmp_path: Path) -> None:
    save(tmp_path, 10)
    save(tmp_path, 20, 10, 5)  # a start at 10, and later one at 5
    with pytest.raises(CheckpointError, match=r"global_step20\b.*\biteration 10\b"):
        found_at_step(options(tmp_path, 10))
    save(tmp_path, 30)
    with pytest.raises(CheckpointError, match=r"global_step30\b.*\biteration 20\b"):
        found_at_step(options(tmp_path, 20))
    assert start_of(options(tmp_path, 20, tmp_path / "elsewhere")) == 20
    with pytest.raises(CheckpointError, match=r"\biteration 0\b"):
        found_at_step(options(tmp_path, 30, finetune=True))


def test_a_ramp_is_looked_at_from_the_samples_of_the_checkpoint_that_is_named(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    assert consumed_at_start(options(tmp_path / "none", None)) == 0
    save(tmp_path, 10)
    save(tmp_path, 30)
    assert consumed_at_start(options(tmp_path, None)) == 240
    assert consumed_at_start(options(tmp_path, 10, elsewhere)) == 80
    assert consumed_at_start(options(tmp_path, 10, elsewhere, finetune=True)) == 0
    assert consumed_at_start(options(tmp_path, 7, elsewhere)) == 0


def test_only_a_start_at_the_named_one_itself_is_kept_in_the_history(tmp_path: Path) -> None:
    save(tmp_path, 10)
    given = options(tmp_path, 10)
    assert step_change(found_at_step(given), given) == (Change(LOAD_STEP, None, 10),)
    save(tmp_path, 20, 10)
    assert step_change(found_at_step(given), given) == ()
    assert step_change(found_at_step(given), options(tmp_path, None)) == ()
