"""Tests of fallback, which `trainer.formats.checkpoint.starting` contains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.facts import missing
from tests.unit.trainer.formats.checkpoint.test_manifest import (
    cut_a_file,
    damage_the_manifest,
    remove_latest,
    three_checkpoints,
)
from trainer.formats.checkpoint.history import Change
from trainer.formats.checkpoint.manifest import tag_of
from trainer.formats.checkpoint.starting import fall_back
from trainer.formats.errors import CheckpointError


def test_a_sound_latest_is_fallen_back_from_by_nobody(tmp_path: Path) -> None:
    assert fall_back(tmp_path, {}) is None
    three_checkpoints(tmp_path)
    assert fall_back(tmp_path, {}) is None
    (tmp_path / tag_of(10) / "weights").unlink()
    assert fall_back(tmp_path, {}) is None


@pytest.mark.parametrize(
    ("damage", "why", "has_manifest"),
    [(cut_a_file, "0 bytes", True), (damage_the_manifest, "manifest.json", False)],
)
def test_the_newest_complete_one_before_a_damaged_one_is_named_with_why_and_what_it_costs(
    tmp_path: Path, damage: Callable[[Path], None], why: str, has_manifest: bool
) -> None:
    three_checkpoints(tmp_path)
    damage(tmp_path)
    found = fall_back(tmp_path, {})
    assert found is not None and found.instead.folder == tmp_path / tag_of(10)
    assert why in found.why and ";" not in found.why and (found.model is not None) == has_manifest
    assert found.change == Change("latest_checkpoint", "global_step100", "global_step10")
    assert not missing(found.message(), "--load-fallback", "global_step100", "global_step10", "90 iterations")


def test_what_a_checksum_has_found_counts_and_so_on_to_the_one_before(tmp_path: Path) -> None:
    three_checkpoints(tmp_path)
    found = fall_back(tmp_path, {"global_step100": "flipped", "global_step10": "flipped too"})
    assert found is not None and (found.why, found.instead.folder.name) == ("flipped", "global_step5")


def test_without_a_complete_one_before_it_nothing_is_fallen_back_to(tmp_path: Path) -> None:
    three_checkpoints(tmp_path)
    cut_a_file(tmp_path)
    for iteration in (5, 10):
        (tmp_path / tag_of(iteration) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"--load-fallback\b.*global_step100\b"):
        fall_back(tmp_path, {})


def test_where_nobody_can_tell_the_latest_there_is_no_one_before_it(tmp_path: Path) -> None:
    three_checkpoints(tmp_path)
    remove_latest(tmp_path)
    with pytest.raises(CheckpointError, match="/latest"):
        fall_back(tmp_path, {})


def test_what_is_later_than_the_damaged_latest_is_of_an_abandoned_branch_and_not_taken(tmp_path: Path) -> None:
    three_checkpoints(tmp_path)
    (tmp_path / "latest").write_text(tag_of(10))  # as after a repoint
    (tmp_path / tag_of(10) / "weights").unlink()
    found = fall_back(tmp_path, {})
    assert found is not None and (found.instead.folder.name, found.lost) == ("global_step5", 5)
