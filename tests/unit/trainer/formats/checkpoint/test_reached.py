"""The progress of the latest checkpoint."""

from __future__ import annotations

from pathlib import Path

from trainer.formats.checkpoint.manifest import LATEST, MANIFEST
from trainer.formats.checkpoint.starting import Reached, latest_beyond, latest_reached


def test_how_far_a_checkpoint_is_can_be_told_whatever_its_schema(tmp_path: Path) -> None:
    folder = tmp_path / "global_step42"
    folder.mkdir()
    (tmp_path / LATEST).write_bytes(b"global_step42\n")
    assert latest_reached(tmp_path) is None
    (folder / MANIFEST).write_text('{"schema_version": 2, "iteration": 42, "consumed_train_samples": "many"}')
    assert latest_reached(tmp_path) == (folder, Reached(42, 0))
    assert latest_beyond(tmp_path, 41) == folder and latest_beyond(tmp_path, 42) is None
    (tmp_path / LATEST).write_bytes(b"\xff\x00")
    assert latest_reached(tmp_path) is None
