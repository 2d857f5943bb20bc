"""What `opsctl checkpoints list` says of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.checkpoints.listing import checkpoint_table, listed
from tests.tiny_run import write_checkpoint


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Three, the last of them damaged, the second the latest."""
    for iteration in (10, 9, 100):
        write_checkpoint(tmp_path, iteration, 8 * iteration)
    folder = tmp_path / "output" / "checkpoints"
    (folder / "latest").write_text("global_step10")
    (folder / "global_step100" / "manifest.json").unlink()
    (folder / ".tmp-global_step110").mkdir()
    return folder


def test_every_checkpoint_is_listed_oldest_first_with_what_is_wrong(checkpoints: Path) -> None:
    found = listed(checkpoints)
    assert [(one.iteration, one.complete, one.latest) for one in found] == [
        (9, True, False),
        (10, True, True),
        (100, False, False),
    ]
    assert found[1].consumed_samples == 80 and found[1].saved_at is not None
    assert "manifest.json is missing" in (found[2].problem or "") and found[2].consumed_samples is None


def test_the_table_has_a_line_for_each(checkpoints: Path) -> None:
    head, nine, ten, hundred = checkpoint_table(listed(checkpoints))
    assert head.split() == ["ITERATION", "SAMPLES", "SAVED", "GB", "BACKUP", "STATE"]
    assert nine.split()[:2] == ["9", "72"] and nine.endswith(" complete")
    assert ten.endswith(" complete, latest") and hundred.split()[:3] == ["100", "?", "?"]


def test_a_missing_folder_has_no_checkpoints(tmp_path: Path) -> None:
    assert listed(tmp_path / "checkpoints") == []
