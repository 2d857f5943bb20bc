"""Checkpoints of numbers that follow from each parameter's name, as DeepSpeed cuts them, made without training.

That real ones are cut so is shown where real trainings save.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from deepspeed.utils.tensor_fragment import fragment_address
from torch import Tensor

from trainer.formats.checkpoint.manifest import Manifest, SavedFile, SavedParameter
from trainer.formats.checkpoint.partitions import (
    Cut,
    engine_name,
    flat_groups,
    optimizer_file,
    saved_parameters,
    stages,
    state_file,
    weights_file,
)
from trainer.recipe.model_shape import ModelShape

FACTS: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "ffn_hidden_size": 24,
    "vocab_size": 61,
    "padded_vocab_size": 64,
    "position_embedding_type": "absolute",
    "max_position_embeddings": 32,
    "embed_layernorm": True,
}
PARAMETERS = saved_parameters(ModelShape.of_facts(FACTS))
STEP = 7


def value(name: str, which: str, shape: tuple[int, ...]) -> Tensor:
    """Return a parameter's whole value in the checkpoint; bf16 weights are this rounded."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {which}".encode()))
    return torch.randn(shape, generator=generator)


def of_rank(one: SavedParameter, which: str, cut: Cut, tensor_rank: int) -> Tensor:
    whole = value(one.name, which, one.shape)
    if one.split_dim is None:
        return whole
    return whole.chunk(cut.tensor, one.split_dim)[tensor_rank].contiguous()


def write_small(folder: Path, cut: Cut, precision: str = "fp32", optimizer: str = "adam") -> Manifest:
    """Write the checkpoint into `folder`, manifest and all."""
    folder.mkdir(parents=True)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    for layer in sorted({one.layer for one in PARAMETERS}):
        for rank in range(cut.tensor):
            own = {
                one.name_in_layer: of_rank(one, "fp32", cut, rank).to(dtype) for one in PARAMETERS if one.layer == layer
            }
            torch.save(own, folder / weights_file(layer, rank))
    moments = {"adam": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}.get(optimizer, ())
    for stage, parameters in enumerate(stages(PARAMETERS, cut)):
        for rank in range(cut.tensor):
            model_rank = cut.model_rank(stage, rank)
            torch.save({"global_steps": STEP, "skipped_steps": 0}, folder / state_file(model_rank))
            for data_rank in range(cut.data if moments else 0):
                states = _states(parameters, cut, rank, data_rank, moments)
                torch.save({"optimizer_state_dict": states}, folder / optimizer_file(data_rank, model_rank, precision))
    return publish_small(folder, cut, precision, optimizer)


def _states(
    parameters: Iterable[SavedParameter], cut: Cut, rank: int, data_rank: int, moments: tuple[str, ...]
) -> dict[str, Any]:
    named = {engine_name(one): one for one in parameters}
    mappings, masters, kept = [], [], {}
    for number, group in enumerate(flat_groups(named.values(), cut)):

        def flat(which: str, group: Any = group) -> Tensor:
            laid = torch.cat([of_rank(named[name], which, cut, rank).flatten() for name in group.places])
            padded = torch.cat([laid, torch.zeros(group.partition * cut.data - len(laid))])
            return padded[data_rank * group.partition :][: group.partition].clone()

        masters.append(flat("fp32"))
        kept[number] = {which: flat(which) for which in moments}
        if "exp_avg" in moments:
            kept[number]["step"] = torch.tensor(float(STEP))
        mappings.append(
            {name: fragment_address(numel, start) for name, (start, numel) in group.addresses(data_rank).items()}
        )
    return {
        "base_optimizer_state": {"state": kept},
        "single_partition_of_fp32_groups": masters,
        "partition_count": [cut.data] * len(masters),
        "param_slice_mappings": mappings,
    }


def publish_small(folder: Path, cut: Cut, precision: str = "fp32", optimizer: str = "adam", **changes: Any) -> Manifest:
    """Write a manifest of the folder's files as they are."""
    layout = {
        "tensor": cut.tensor,
        "pipeline": cut.pipeline,
        "data": cut.data,
        "world_size": cut.tensor * cut.pipeline * cut.data,
        "partition_method": cut.partition_method,
        "zero_stage": 1,
        "optimizer": optimizer,
    }
    values: dict[str, Any] = {
        "iteration": STEP,
        "consumed_train_samples": 8 * STEP,
        "consumed_train_tokens": 128 * STEP,
        "consumed_valid_samples": 0,
        "precision": precision,
        "layout": layout,
        "model": FACTS,
        "learning_rate": {},
        "files": {one.name: SavedFile(one.stat().st_size, "0" * 16) for one in folder.glob("*.pt")},
        "parameters": PARAMETERS,
    }
    manifest = Manifest(**{**values, **changes})
    (folder / "manifest.json").write_text(json.dumps(manifest.as_json()))
    return manifest
