"""The small twin of a run, on two nodes, for trying a change before the run itself gets it. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opsctl.core.shipped import templates_folder
from opsctl.run.config.checks import find_problems
from opsctl.run.config.load import LoadedRun, expanded_file, load_run_file
from opsctl.run.config.schema import ExpectTable
from opsctl.run.init.rehearsal import SCALED, twin_of
from trainer.recipe.options import BY_KEY

EXAMPLES = sorted((templates_folder() / "examples").glob("*.toml"))


def parent_of(example: Path, folder: Path) -> LoadedRun:
    path = folder / "parent's" / "run.toml"
    path.parent.mkdir()
    path.write_text(example.read_text())
    names = set(re.findall(r"\$\{(\w+)\}", path.read_text()))
    return load_run_file(path, {one: f"/{one}" for one in names})


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_twin_of_every_example_can_run_and_differs_only_in_what_is_scaled(example: Path, tmp_path: Path) -> None:
    parent = parent_of(example, tmp_path)
    file = expanded_file(parent)
    twin = twin_of(file, str(parent.path), "small")
    path = tmp_path / "small.toml"
    path.write_text(twin.text)
    small = load_run_file(path, {})
    found = find_problems(small, files=False)
    assert found.problems == () and found.layout is not None
    made = expanded_file(small)
    mine, its = ({**one.trainer, **one.data, **one.checkpoints} for one in (file, made))
    assert {key for key in {**mine, **its} if mine.get(key) != its.get(key)} <= SCALED
    assert (made.run.name, made.run.rehearses, made.slurm.nodes) == (
        "small",
        str(parent.path),
        min(2, file.slurm.nodes),
    )
    assert made.run.output == str(tmp_path / "output") != file.run.output
    assert made.run.environment == file.run.environment and made.env == file.env and made.data == file.data
    assert made.trainer["hidden_size"] <= 1024 and twin.scaled


def test_bloom_is_rehearsed_as_it_was(tmp_path: Path) -> None:
    parent = parent_of(templates_folder() / "examples" / "tr11-176B-ml.toml", tmp_path)
    text = twin_of(expanded_file(parent), str(parent.path), "small").text
    for line in ("tensor_model_parallel_size = 4", "pipeline_model_parallel_size = 2", "num_layers = 2", "nodes = 2"):
        assert f"\n{line}\n" in text
    assert "\nhidden_size = 1024\n" in text and '\ntime = "0:30:00"\n' in text


@pytest.mark.parametrize(
    ("heads", "groups", "tensor", "small"),
    [(32, 4, 1, (8, 1)), (12, 3, 1, (8, 2)), (12, 4, 4, (8, 4)), (12, 6, 2, (8, 4)), (6, 3, 1, (6, 3))],
)
def test_heads_that_share_keys_and_values_do_so_in_the_twin(
    tmp_path: Path, heads: int, groups: int, tensor: int, small: tuple[int, int]
) -> None:
    parent = parent_of(templates_folder() / "examples" / "llama-1B.toml", tmp_path)
    file = expanded_file(parent)
    sizes = {"num_attention_heads": heads, "num_query_groups": groups, "hidden_size": 64 * heads}
    trainer = {**file.trainer, **sizes, "tensor_model_parallel_size": tensor}
    path = tmp_path / "small.toml"
    path.write_text(twin_of(msgspec.structs.replace(file, trainer=trainer), str(parent.path), "small").text)
    twin = load_run_file(path, {})
    assert find_problems(twin, files=False).problems == ()
    assert (twin.file.trainer["num_attention_heads"], twin.file.trainer["num_query_groups"]) == small


@pytest.mark.parametrize(
    "stages", [{"decoder_first_pipeline_num_layers": 4}, {"pp_partition_method": "4,6,6,6"}], ids=["ends", "listed"]
)
def test_a_rehearsal_of_wide_heads_on_uneven_stages_has_even_ones(tmp_path: Path, stages: dict[str, Any]) -> None:
    parent = parent_of(templates_folder() / "examples" / "llama-1B.toml", tmp_path)
    file = expanded_file(parent)
    trainer = {**file.trainer, **stages, "pipeline_model_parallel_size": 4, "kv_channels": 96}
    path = tmp_path / "small.toml"
    path.write_text(twin_of(msgspec.structs.replace(file, trainer=trainer), str(parent.path), "small").text)
    twin = load_run_file(path, {})
    assert find_problems(twin, files=False).problems == ()
    assert twin.file.trainer["kv_channels"] == 96


@pytest.mark.parametrize(
    ("time", "margin", "expected"),
    [
        ("20:00:00", "30:00", ("0:30:00", "0:05:00")),
        ("30:00", "2:00", ("30:00", "2:00")),
        ("10:00", "9:00", ("10:00", "0:02:30")),
        ("2", "0:30", ("2", "0:30")),
    ],
)
def test_a_run_whose_limit_is_short_has_a_twin_with_no_longer_one(
    tmp_path: Path, time: str, margin: str, expected: tuple[str, str]
) -> None:
    parent = parent_of(templates_folder() / "examples" / "demo.toml", tmp_path)
    file = expanded_file(parent)
    slurm = msgspec.structs.replace(file.slurm, time=time, exit_margin=margin)
    path = tmp_path / "small.toml"
    path.write_text(twin_of(msgspec.structs.replace(file, slurm=slurm), str(parent.path), "small").text)
    small = load_run_file(path, {})
    assert (small.file.slurm.time, small.file.slurm.exit_margin) == expected
    assert find_problems(small, files=False).problems == ()


def test_what_the_run_reckons_with_is_not_the_twins_and_that_is_said(tmp_path: Path) -> None:
    parent = parent_of(templates_folder() / "examples" / "demo.toml", tmp_path)
    file = msgspec.structs.replace(expanded_file(parent), expect=ExpectTable(save_seconds=3000))
    twin = twin_of(file, str(parent.path), "small")
    assert "save_seconds" not in twin.text and twin.scaled[-1].startswith("[expect]: left out")
    without = twin_of(msgspec.structs.replace(file, expect=ExpectTable()), str(parent.path), "small")
    assert without.text == twin.text and without.scaled == twin.scaled[:-1]


def test_what_is_scaled_are_options_of_the_trainer() -> None:
    assert {key for key in SCALED if key not in BY_KEY} <= {"lr_decay_tokens", "lr_warmup_tokens"}
