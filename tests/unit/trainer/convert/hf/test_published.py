"""A configuration of a published model that would fill the memory is refused at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.convert.hf.imported_model import ImportedModel
from trainer.formats.errors import CheckpointError


def test_a_configuration_of_more_layers_than_tensors_is_refused_at_once(publish: Callable[..., Path]) -> None:
    folder = publish("bloom")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_layer": 2**62}))
    with pytest.raises(CheckpointError, match=r"\b4611686018427387904 layers.* \d+ tensors"):
        ImportedModel(folder, 128)
