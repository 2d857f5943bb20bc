"""The manifest, and whether a checkpoint belongs to a training."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import xxhash

from trainer.formats.errors import CheckpointError
from trainer.formats.manifest import Manifest, check_checksums, check_sizes, latest_folder, read_manifest
from trainer.formats.resumable import refuse_other_layout, refuse_other_model, schedule_to_use
from trainer.recipe.schedule import LearningRateSchedule

SCHEDULE = LearningRateSchedule(6e-5, 6e-6, 183_105, 200_000_000, "cosine")
LAYOUT: dict[str, Any] = {
    "tensor": 4,
    "pipeline": 12,
    "data": 8,
    "world_size": 384,
    "partition_method": "type:transformer|embedding",
    "zero_stage": 1,
    "optimizer": "adam",
}
MODEL = {"num_layers": 70, "hidden_size": 14336, "position_embedding_type": "alibi"}


def manifest_of(**changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "iteration": 42,
        "consumed_train_samples": 672,
        "consumed_train_tokens": 1_376_256,
        "consumed_valid_samples": 0,
        "precision": "bf16",
        "layout": LAYOUT,
        "model": MODEL,
        "learning_rate": dataclasses.asdict(SCHEDULE),
        "files": {},
    }
    return Manifest(**{**values, **changes})


def write(folder: Path, **files: bytes) -> Manifest:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    listed = {name: {"bytes": len(data), "xxh64": xxhash.xxh64(data).hexdigest()} for name, data in files.items()}
    manifest = manifest_of(files=listed)
    (folder / "manifest.json").write_text(json.dumps(manifest.as_json()))
    return manifest


def test_a_manifest_reads_back_and_its_files_are_checked(tmp_path: Path) -> None:
    folder = tmp_path / "global_step42"
    manifest = write(folder, one=b"weights", two=b"moments")
    assert read_manifest(folder) == manifest
    check_sizes(folder, manifest)
    for part in range(3):
        check_checksums(folder, manifest, part, 3)
    (folder / "two").write_bytes(b"moNents")
    check_sizes(folder, manifest)
    check_checksums(folder, manifest, 0, 2)  # the other rank's part
    with pytest.raises(CheckpointError, match=f"{folder}/two has checksum"):
        check_checksums(folder, manifest, 1, 2)
    (folder / "one").unlink()
    with pytest.raises(CheckpointError, match=f"{folder}/one is missing"):
        check_sizes(folder, manifest)


def test_latest_is_a_name_beside_it_and_nothing_else(tmp_path: Path) -> None:
    assert latest_folder(tmp_path) is None
    write(tmp_path / "global_step42")
    (tmp_path / "latest").write_text("global_step42\n")
    assert latest_folder(tmp_path) == tmp_path / "global_step42"
    for wrong in ("", "../elsewhere", "global_step43", ".tmp-global_step42"):
        (tmp_path / ".tmp-global_step42").mkdir(exist_ok=True)
        (tmp_path / "latest").write_text(wrong)
        with pytest.raises(CheckpointError, match=f"^{tmp_path}/latest names "):
            latest_folder(tmp_path)


def test_a_manifest_of_another_schema_is_not_guessed_at(tmp_path: Path) -> None:
    write(tmp_path / "c")
    stored = json.loads((tmp_path / "c" / "manifest.json").read_text())
    (tmp_path / "c" / "manifest.json").write_text(json.dumps({**stored, "schema_version": 2}))
    with pytest.raises(CheckpointError, match="schema version 2, this trainer reads 1"):
        read_manifest(tmp_path / "c")


def test_the_model_must_be_the_checkpoints(tmp_path: Path) -> None:
    refuse_other_model(tmp_path, manifest_of(), MODEL)
    with pytest.raises(
        CheckpointError, match=r"hidden_size value from checkpoint \(14336\) .* give --hidden-size 14336"
    ):
        refuse_other_model(tmp_path, manifest_of(), {**MODEL, "hidden_size": 7168})


def test_the_layout_must_be_the_checkpoints_and_weights_alone_do_not_care_for_dp(tmp_path: Path) -> None:
    refuse_other_layout(tmp_path, manifest_of(), LAYOUT, "bf16", with_optimizer=True)
    fewer = {**LAYOUT, "data": 4, "world_size": 192}
    with pytest.raises(CheckpointError, match="TP 4 x PP 12 x DP 8, this training has TP 4 x PP 12 x DP 4"):
        refuse_other_layout(tmp_path, manifest_of(), fewer, "bf16", with_optimizer=True)
    refuse_other_layout(tmp_path, manifest_of(), fewer, "fp32", with_optimizer=False)
    with pytest.raises(CheckpointError, match="was saved in bf16, this training is in fp32: give --bf16"):
        refuse_other_layout(tmp_path, manifest_of(), LAYOUT, "fp32", with_optimizer=True)
    other = {**LAYOUT, "partition_method": "type:transformer"}
    with pytest.raises(CheckpointError, match=r"--pp-partition-method type:transformer\|embedding"):
        refuse_other_layout(tmp_path, manifest_of(), other, "bf16", with_optimizer=False)


def test_a_changed_schedule_is_refused_with_every_change_by_megatrons_names(tmp_path: Path) -> None:
    stored = manifest_of()
    assert schedule_to_use(tmp_path, stored, SCHEDULE, False, False) == SCHEDULE
    changed = LearningRateSchedule(3e-5, 3e-6, 100, 100_000, "linear")
    with pytest.raises(CheckpointError) as refused:
        schedule_to_use(tmp_path, stored, changed, False, False)
    for words in (
        "learning rate 6e-05 -> 3e-05",
        "minimum learning rate 6e-06 -> 3e-06",
        "warmup iterations 183105 -> 100",
        "total number of iterations 200000000 -> 100000",
        "decay style cosine -> linear",
    ):
        assert words in str(refused.value)
    assert schedule_to_use(tmp_path, stored, changed, True, False) == changed
    assert schedule_to_use(tmp_path, stored, changed, False, True) == SCHEDULE
