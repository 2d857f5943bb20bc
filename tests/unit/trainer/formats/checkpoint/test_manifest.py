"""The manifest, and whether a checkpoint belongs to a training."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import missing
from trainer.formats.checkpoint.history import Change, Saved, Start
from trainer.formats.checkpoint.manifest import (
    LATEST,
    MANIFEST,
    Manifest,
    SavedFile,
    SavedParameter,
    check_checksums,
    check_sizes,
    checkpoint_folders,
    checksum,
    fault_of,
    iteration_of,
    latest_checkpoint,
    latest_folder,
    newest_complete,
    read_manifest,
    replaced_under,
    set_aside,
    tag_of,
)
from trainer.formats.checkpoint.starting import (
    Reached,
    latest_reached,
    refuse_other_layout,
    refuse_other_model,
    schedule_to_use,
)
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_file_text
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.option_table import OPTIONS

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
    """Return a checkpoint in `folder`, of the iteration that its name says."""
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    listed = {name: SavedFile(len(data), xxhash.xxh64(data).hexdigest()) for name, data in files.items()}
    manifest = manifest_of(files=listed, iteration=iteration_of(folder.name) or 42)
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
    with pytest.raises(CheckpointError, match=f"{folder}/two"):
        check_checksums(folder, manifest, 1, 2)
    with pytest.raises(CheckpointError, match=f"{folder}/two"):
        check_checksums(folder, manifest)
    (folder / "one").unlink()
    with pytest.raises(CheckpointError, match=f"{folder}/one"):
        check_sizes(folder, manifest)


def test_a_checkpoint_whose_weights_are_not_finite_is_not_the_newest_to_continue_from(tmp_path: Path) -> None:
    write(tmp_path / "global_step10")
    newer = write(tmp_path / "global_step20")
    stored = msgspec.structs.replace(newer, not_finite="the weights")
    (tmp_path / "global_step20" / MANIFEST).write_text(json.dumps(stored.as_json()))
    found = newest_complete(tmp_path)
    assert found is not None and found.folder.name == "global_step10"


COUNTS = st.integers(0, 2**62)
FACTS = st.dictionaries(
    st.text(), COUNTS | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.text()
)
MANIFESTS = st.builds(
    Manifest,
    iteration=st.integers(0, 10**18 - 1),
    consumed_train_samples=COUNTS,
    consumed_train_tokens=COUNTS,
    consumed_valid_samples=COUNTS,
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    layout=st.dictionaries(st.text(), COUNTS | st.text()),
    model=FACTS,
    learning_rate=FACTS,
    files=st.dictionaries(
        st.from_regex(r"[^\x00-\x1f\x7f/.]+(/[^\x00-\x1f\x7f/.]+)?", fullmatch=True),
        st.builds(SavedFile, COUNTS, st.text("0123456789abcdef", min_size=16, max_size=16)),
    ),
)


@given(MANIFESTS)
def test_any_manifest_is_read_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, manifest: Manifest
) -> None:
    root = tmp_path_factory.mktemp("checkpoints")
    folder = root / tag_of(manifest.iteration)
    folder.mkdir()
    (folder / MANIFEST).write_text(json.dumps(manifest.as_json(), indent=2))
    (root / LATEST).write_text(folder.name)
    assert read_manifest(folder) == manifest
    assert latest_reached(root) == (
        folder,
        Reached(manifest.iteration, manifest.consumed_train_samples, manifest.consumed_train_tokens),
    )


@given(st.integers(0, 10**18 - 1))
def test_a_tag_says_its_iteration(iteration: int) -> None:
    assert iteration_of(tag_of(iteration)) == iteration


@given(st.text() | st.from_regex(r"\s?global_step-?\d*\n?.?", fullmatch=True))
def test_nothing_else_is_a_tag(text: str) -> None:
    found = iteration_of(text)
    assert found is None or text.removeprefix("global_step").lstrip("0") == str(found).lstrip("0")


@pytest.mark.parametrize("said", ["", "[]", "null", "{", '{"iteration": "x"}', '{"consumed_train_samples": 4}'])
def test_a_damaged_manifest_is_refused_in_a_line_and_says_nothing_to_who_only_looks(tmp_path: Path, said: str) -> None:
    write(tmp_path / "global_step42")
    (tmp_path / LATEST).write_text("global_step42")
    (tmp_path / "global_step42" / MANIFEST).write_text(said)
    with pytest.raises(CheckpointError, match=r"^\S+/manifest\.json .*\(\w+: .*\)"):
        read_manifest(tmp_path / "global_step42")
    assert latest_reached(tmp_path) is None


def test_latest_is_a_name_beside_it_and_nothing_else(tmp_path: Path) -> None:
    assert latest_folder(tmp_path) is None
    write(tmp_path / "global_step42")
    (tmp_path / "latest").write_text("global_step42\n")
    assert latest_folder(tmp_path) == tmp_path / "global_step42"
    for wrong in ("", "../elsewhere", "global_step43", ".tmp-global_step42", "global_step42\nglobal_step42", "best"):
        (tmp_path / ".tmp-global_step42").mkdir(exist_ok=True)
        (tmp_path / "latest").write_text(wrong)
        with pytest.raises(CheckpointError, match=f"^{tmp_path}/latest "):
            latest_folder(tmp_path)


def test_a_manifest_of_another_schema_is_not_guessed_at(tmp_path: Path) -> None:
    write(tmp_path / "c")
    stored = json.loads((tmp_path / "c" / "manifest.json").read_text())
    (tmp_path / "c" / "manifest.json").write_text(json.dumps({**stored, "schema_version": 3}))
    with pytest.raises(CheckpointError, match=r"schema version 3\b.*\b2\b"):
        read_manifest(tmp_path / "c")


def test_the_model_must_be_the_checkpoints(tmp_path: Path) -> None:
    refuse_other_model(tmp_path, manifest_of(), MODEL)
    with pytest.raises(CheckpointError, match=r"hidden_size .*\b14336\b.*\b7168\b.*--hidden-size 14336\b"):
        refuse_other_model(tmp_path, manifest_of(), {**MODEL, "hidden_size": 7168})


def test_how_ranks_share_a_checkpoint_is_all_one_and_what_its_optimizer_keeps_is_not(tmp_path: Path) -> None:
    other = {**LAYOUT, "tensor": 2, "pipeline": 4, "data": 3, "world_size": 24, "partition_method": "type:transformer"}
    refuse_other_layout(tmp_path, manifest_of(), other, "bf16", with_optimizer=True)
    with pytest.raises(CheckpointError, match=r"\bbf16\b.*\bfp32\b.*--bf16\b"):
        refuse_other_layout(tmp_path, manifest_of(), LAYOUT, "fp32", with_optimizer=True)
    with pytest.raises(CheckpointError, match=r"--optimizer adam\b.*\bsgd\b"):
        refuse_other_layout(tmp_path, manifest_of(), {**LAYOUT, "optimizer": "sgd"}, "bf16", with_optimizer=True)
    refuse_other_layout(tmp_path, manifest_of(), {**LAYOUT, "optimizer": "sgd"}, "fp32", with_optimizer=False)


def test_another_padding_of_the_same_vocabulary_is_the_same_model(tmp_path: Path) -> None:
    saved = {**MODEL, "vocab_size": 61, "padded_vocab_size": 64}
    refuse_other_model(tmp_path, manifest_of(model=saved), {**saved, "padded_vocab_size": 72})
    with pytest.raises(CheckpointError, match=r"\bvocab_size .*\b61\b"):
        refuse_other_model(tmp_path, manifest_of(model=saved), {**saved, "vocab_size": 60})
    older = {**MODEL, "padded_vocab_size": 64}  # of the first schema, which does not know how many rows are tokens'
    with pytest.raises(CheckpointError, match=r"\bpadded_vocab_size .*\b64\b"):
        refuse_other_model(tmp_path, manifest_of(model=older), {**saved, "padded_vocab_size": 72})


@pytest.mark.parametrize(
    ("of_checkpoint", "now", "way"),
    [
        ({"hidden_size": 4096}, {"hidden_size": 7168}, "--hidden-size 4096"),
        ({"embed_layernorm": True}, {"embed_layernorm": False}, "give --embed-layernorm"),
        ({"embed_layernorm": False}, {"embed_layernorm": True}, "leave --embed-layernorm"),
        ({"normalization": "RMSNorm"}, {}, "--normalization RMSNorm"),
        ({}, {"normalization": "RMSNorm"}, "leave --normalization"),
        ({}, {"disable_bias_linear": True}, "leave --disable-bias-linear"),
        # What only a checkpoint of the first schema is refused for: it does not say how many rows are tokens.
        ({"padded_vocab_size": 70}, {"padded_vocab_size": 65, "vocab_size": 65}, "--pad-vocab-size-to 70"),
    ],
)
def test_the_way_out_of_another_model_is_an_option_that_there_is(
    tmp_path: Path, of_checkpoint: dict[str, object], now: dict[str, object], way: str
) -> None:
    with pytest.raises(CheckpointError) as refusal:
        refuse_other_model(tmp_path, manifest_of(model=of_checkpoint), now)
    assert way in str(refusal.value)
    option = next(word.rstrip(",") for word in str(refusal.value).split() if word.startswith("--"))
    assert option in [one.name for one in OPTIONS]


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


def three_checkpoints(root: Path) -> None:
    """Make checkpoints of iterations 5, 10 and 100, whose names do not sort by iteration. `latest` names the last."""
    for iteration in (5, 10, 100):
        write(root / tag_of(iteration), weights=b"weights")
    (root / LATEST).write_text(tag_of(100))


def test_checkpoints_are_listed_by_iteration_whatever_else_is_there(tmp_path: Path) -> None:
    assert checkpoint_folders(tmp_path / "absent") == []
    three_checkpoints(tmp_path)
    for other in (".tmp-global_step200", "global_step", "global_step7x", "best"):
        (tmp_path / other).mkdir()
    assert [folder.name for folder in checkpoint_folders(tmp_path)] == [
        "global_step100",
        "global_step10",
        "global_step5",
    ]
    with pytest.raises(CheckpointError, match=r"/latest .*Not a directory"):
        checkpoint_folders(tmp_path / LATEST)


def test_a_complete_checkpoint_has_its_own_manifest_and_every_file_in_its_size(tmp_path: Path) -> None:
    three_checkpoints(tmp_path)
    newest = tmp_path / "global_step100"
    assert fault_of(newest) is None
    found = newest_complete(tmp_path)
    assert found is not None
    assert (found.folder, found.manifest.iteration) == (newest, 100)
    (newest / "weights").write_bytes(b"weight")
    assert not missing(fault_of(newest) or "", f"{newest}/weights", "6 bytes", "7")
    (tmp_path / "global_step10" / MANIFEST).write_bytes((newest / MANIFEST).read_bytes())
    fault = fault_of(tmp_path / "global_step10") or ""
    assert not missing(fault, f"{tmp_path}/global_step10/manifest.json", "global_step100")
    found = newest_complete(tmp_path)
    assert found is not None
    assert found.folder == tmp_path / "global_step5"
    (tmp_path / "global_step5" / MANIFEST).unlink()
    assert newest_complete(tmp_path) is None


def remove_latest(root: Path) -> None:
    (root / LATEST).unlink()


def point_at_nothing(root: Path) -> None:
    (root / LATEST).write_text("global_step7")


def empty_latest(root: Path) -> None:
    (root / LATEST).write_text("")


def make_latest_a_fifo(root: Path) -> None:
    (root / LATEST).unlink()
    os.mkfifo(root / LATEST)


def damage_the_manifest(root: Path) -> None:
    (root / tag_of(100) / MANIFEST).write_text("null")


def make_the_manifest_a_fifo(root: Path) -> None:
    (root / tag_of(100) / MANIFEST).unlink()
    os.mkfifo(root / tag_of(100) / MANIFEST)


def cut_a_file(root: Path) -> None:
    (root / tag_of(100) / "weights").write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "facts", "newest"),
    [
        (remove_latest, ["/latest", "3 checkpoints"], 100),
        (point_at_nothing, ["/latest", "global_step7"], 100),
        (empty_latest, ["/latest"], 100),
        (make_latest_a_fifo, ["/latest", "regular file"], 100),
        (damage_the_manifest, ["/global_step100/manifest.json", "ValidationError"], 10),
        (make_the_manifest_a_fifo, ["/global_step100/manifest.json", "regular file"], 10),
        (cut_a_file, ["/global_step100/weights", "0 bytes", "7"], 10),
    ],
)
def test_checkpoints_without_a_sound_latest_are_no_fresh_start_and_the_newest_complete_one_is_named(
    tmp_path: Path, damage: Callable[[Path], None], facts: list[str], newest: int
) -> None:
    assert latest_checkpoint(tmp_path) is None
    three_checkpoints(tmp_path)
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found.folder == tmp_path / "global_step100"
    damage(tmp_path)
    with pytest.raises(CheckpointError) as refused:
        latest_checkpoint(tmp_path)
    finding, way_out = str(refused.value).split("; ", 1)
    assert finding.startswith(str(tmp_path)) and not missing(finding, *facts)
    assert not missing(way_out, f"global_step{newest}", "opsctl checkpoints repoint")


def test_a_single_whole_checkpoint_needs_no_latest(tmp_path: Path) -> None:
    """The first save of a training was killed just before it could name what it had finished."""
    three_checkpoints(tmp_path)
    remove_latest(tmp_path)
    for other in (5, 10):
        shutil.rmtree(tmp_path / tag_of(other))
    found = latest_checkpoint(tmp_path)
    assert found is not None and found.folder == tmp_path / tag_of(100)
    cut_a_file(tmp_path)
    with pytest.raises(CheckpointError, match="/latest"):
        latest_checkpoint(tmp_path)


def test_a_checkpoint_that_was_set_aside_and_not_replaced_is_still_the_latest(tmp_path: Path) -> None:
    three_checkpoints(tmp_path)
    latest = tmp_path / tag_of(100)
    latest.rename(set_aside(latest))
    found = latest_checkpoint(tmp_path)
    assert found is not None and found.folder == set_aside(latest) and found.manifest.iteration == 100
    assert replaced_under(tmp_path) == [(set_aside(latest), latest)]


def test_what_is_no_checkpoint_is_a_fresh_start(tmp_path: Path) -> None:
    (tmp_path / ".tmp-global_step5").mkdir()
    (tmp_path / "zero_to_fp32.py").touch()
    assert latest_checkpoint(tmp_path) is None
    assert latest_folder(tmp_path) is None
    (tmp_path / "global_step5").mkdir()
    with pytest.raises(CheckpointError, match=r"global_step5\b.*\brestore\b"):
        latest_checkpoint(tmp_path)


def test_a_changed_checksum_names_another_checkpoint_than_its_own(tmp_path: Path) -> None:
    three_checkpoints(tmp_path)
    folder = tmp_path / "global_step100"
    (folder / "weights").write_bytes(b"weiGhts")
    with pytest.raises(CheckpointError, match=r"/weights .*global_step10\b.*opsctl checkpoints repoint --to 10\b"):
        check_checksums(folder, read_manifest(folder))


def test_a_manifest_of_the_first_schema_has_nothing_of_the_second(tmp_path: Path) -> None:
    write(tmp_path / "global_step42")
    path = tmp_path / "global_step42" / MANIFEST
    stored = json.loads(path.read_text())
    second = ("parameters", "training", "settings", "loss", "saved", "history")
    path.write_text(json.dumps({**{k: v for k, v in stored.items() if k not in second}, "schema_version": 1}))
    found = read_manifest(tmp_path / "global_step42")
    assert [getattr(found, name) for name in second] == [(), {}, {}, None, None, ()]


def test_a_manifest_remembers_every_start_and_every_change(tmp_path: Path) -> None:
    at = datetime(2026, 3, 1, 3, 7, tzinfo=UTC)
    change = Change("clip_grad", 1.0, 0.5)
    start = Start(at=at, user="ann", host="n1", kind="resumed", iteration=7, changes=(change,), layout={"tensor": 2})
    saved = Saved(at=at, user="ann", host="n1", attempt="33", revision=2)
    weight = SavedParameter("embedding.weight", 1, "weight", (64, 8), decays=True, split_dim=0, token_rows=61)
    manifest = manifest_of(history=(start,), saved=saved, parameters=(weight,), loss=2.5)
    (tmp_path / MANIFEST).write_text(json_file_text(manifest.as_json()))
    assert read_manifest(tmp_path) == manifest


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "..", "", "a\nb", "a\0b"])
def test_a_manifest_that_names_files_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    text = json_file_text(manifest_of(files={name: SavedFile(0, "0" * 16)}).as_json())
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(CheckpointError) as refused:
        read_manifest(tmp_path)
    assert str(refused.value).isprintable()


def test_counters_and_sizes_below_nothing_are_refused(tmp_path: Path) -> None:
    for wrong in ({"consumed_train_samples": -1}, {"files": {"a": SavedFile(-1, "0" * 16)}}):
        (tmp_path / MANIFEST).write_text(json_file_text(manifest_of(**wrong).as_json()))
        with pytest.raises(CheckpointError, match="Expected `int` >= 0"):
            read_manifest(tmp_path)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_no_part_of_a_checkpoint_and_keeps_nobody_reading(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "a")
    saved = manifest_of(files={"a": SavedFile((tmp_path / "a").stat().st_size, "0" * 16)})
    with pytest.raises(CheckpointError, match=str(tmp_path / "a")):
        check_sizes(tmp_path, saved)
    with pytest.raises(OSError, match=r"regular file|Is a directory"):
        checksum(tmp_path / "a")
