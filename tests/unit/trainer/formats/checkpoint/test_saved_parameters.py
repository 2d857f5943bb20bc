"""The parameters in a manifest, compared with its model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.trainer.checkpoint.small_checkpoint import FACTS, PARAMETERS, write_small
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.checkpoint.partitions import Cut, parameters_of
from trainer.formats.errors import CheckpointError


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return write_small(tmp_path_factory.mktemp("small") / "global_step7", Cut(1, 1, 1, "parameters"))


def with_model(manifest: Manifest, model: Mapping[str, Any]) -> Manifest:
    return msgspec.structs.replace(manifest, model=dict(model))


def test_a_manifest_without_parameters_has_those_of_its_model(manifest: Manifest) -> None:
    assert parameters_of(msgspec.structs.replace(manifest, parameters=())) == PARAMETERS == parameters_of(manifest)


@pytest.mark.parametrize("name", [name for name in FACTS if name != "vocab_size"])
def test_a_model_that_leaves_something_out_is_refused_by_its_name(manifest: Manifest, name: str) -> None:
    left = {other: value for other, value in FACTS.items() if other != name}
    with pytest.raises(CheckpointError):
        parameters_of(with_model(manifest, left))


@pytest.mark.parametrize("name", list(FACTS))
def test_a_model_of_sizes_that_cannot_be_is_refused_at_once(manifest: Manifest, name: str) -> None:
    values: list[object] = [-1, 10**30, 1.5, "x", [], {}, 2**62]
    for value in values:
        with pytest.raises(CheckpointError) as refused:
            parameters_of(with_model(manifest, {**FACTS, name: value}))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "lie",
    [{"shape": (-1, 16)}, {"shape": ()}, {"split_dim": 5}, {"layer": 99}, {"name": "a"}, {"decays": False}],
    ids=str,
)
def test_parameters_that_are_not_the_models_are_refused_naming_the_first(
    manifest: Manifest, lie: Mapping[str, Any]
) -> None:
    first = msgspec.structs.replace(manifest.parameters[0], **lie)
    lying = msgspec.structs.replace(manifest, parameters=(first, *manifest.parameters[1:]))
    with pytest.raises(CheckpointError, match=f"'{first.name}'"):
        parameters_of(lying)
    with pytest.raises(CheckpointError, match="parameters"):
        parameters_of(msgspec.structs.replace(manifest, parameters=manifest.parameters[:-1]))


def test_no_file_of_the_folder_is_needed_to_refuse_it(tmp_path: Path, manifest: Manifest) -> None:
    with pytest.raises(CheckpointError, match=r"num_layers\b"):
        parameters_of(with_model(manifest, {**FACTS, "num_layers": 99_999_999_999}))
    assert not list(tmp_path.iterdir())
