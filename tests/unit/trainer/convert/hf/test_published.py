"""Whatever lies in the place of a published model's files is refused in one line, at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.convert.hf.imported_model import ImportedModel, Padding, PublishedModel
from trainer.formats.errors import CheckpointError

NO_TABLES: dict[str, Callable[[], Any]] = {
    "numbers for names": lambda: {1: torch.ones(2)},
    "sparse": lambda: {"a": torch.ones(2, 2).to_sparse()},
    "without data": lambda: {"a": torch.empty(2, device="meta")},
    "a list": lambda: [torch.ones(2)],
}


@pytest.mark.parametrize("kind", NO_TABLES)
def test_a_pickled_file_of_anything_but_plain_tensors_by_name_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save(NO_TABLES[kind](), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        PublishedModel(tmp_path)


def test_an_empty_pickled_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        PublishedModel(tmp_path)


def test_a_configuration_of_more_layers_than_tensors_is_refused_at_once(publish: Callable[..., Path]) -> None:
    folder = publish("bloom")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_layer": 2**62}))
    with pytest.raises(CheckpointError, match=r"\b4611686018427387904 layers.* \d+ tensors"):
        ImportedModel(folder, Padding(128, None))
