"""The layer files of a saved checkpoint hold exactly what the table of parameters says of its manifest's model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import run_training, write_corpus
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import parameter_table

pytestmark = pytest.mark.distributed

Shapes = dict[tuple[int, int], dict[str, tuple[int, ...]]]


def shapes_in(folder: Path) -> Shapes:
    """(layer, tensor rank) -> name -> shape, of every layer file."""
    import torch

    found: Shapes = {}
    for file in folder.glob("layer_*"):
        _, layer, rank = file.name.removesuffix("-model_states.pt").replace("-", "_").replace("_model_", "_").split("_")
        weights = torch.load(file, weights_only=True)
        found[int(layer), int(rank)] = {name: tuple(value.shape) for name, value in weights.items()}
    return found


@pytest.mark.parametrize(
    ("tensor", "pipeline", "model"),
    [
        (1, 1, {"position_embedding_type": "absolute", "num_layers": 3}),
        (2, 1, {"embed_layernorm": True, "ffn_hidden_size": 24, "pad_vocab_size_to": 72}),
        (2, 2, {"position_embedding_type": "absolute", "embed_layernorm": True, "bf16": True}),
    ],
)
def test_layer_files_hold_the_tables_names_and_shapes(
    pool: Pool, tmp_path: Path, tensor: int, pipeline: int, model: dict[str, Any]
) -> None:
    layout = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
    options = {"data_path": [write_corpus(tmp_path)], "train_iters": 1, "save": str(tmp_path / "saved")}
    ranks = pool.run(tensor * pipeline, run_training, {**options, **layout, **model})
    assert [rank.status for rank in ranks] == [0] * len(ranks), [rank.errors for rank in ranks]
    folder = tmp_path / "saved" / "global_step1"
    shape = ModelShape.of_facts(json.loads((folder / "manifest.json").read_text())["model"])
    expected: Shapes = {}
    for one in parameter_table(shape):
        for rank in range(tensor):
            expected.setdefault((one.layer, rank), {})[one.name] = one.rank_shape(tensor)
    assert shapes_in(folder) == expected
