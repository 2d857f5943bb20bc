"""A checkpoint of a model of any size and layout, made without training: its states are drawn, one by one."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from torch import Tensor

from trainer.checkpoint.saved_state import MOMENTS, Part
from trainer.convert.conversion import write_native
from trainer.convert.native import NativeFiles
from trainer.core.dtypes import DTYPES
from trainer.formats.checkpoint.changes import Identity
from trainer.formats.checkpoint.manifest import Manifest, SavedParameter, tag_of
from trainer.formats.checkpoint.partitions import INFO, Cut, saved_parameters, universal_checkpoint_info
from trainer.recipe.engine_config import engine_config
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options, parse, to_arguments

STEP = 7


class DrawnStates:
    """States that follow from a parameter's name; rows of padding are zero."""

    def __init__(self, parameters: tuple[SavedParameter, ...], precision: str, optimizer: str) -> None:
        self.parameters: Mapping[str, SavedParameter] = {one.name: one for one in parameters}
        self.moments: tuple[str, ...] = MOMENTS.get(optimizer, ())
        self._precision = precision

    def weight(self, name: str, part: Part | None = None) -> Tensor:
        return self.optimizer(name, "fp32", part).to(DTYPES[self._precision])

    def optimizer(self, name: str, which: str, part: Part | None = None) -> Tensor:
        one = self.parameters[name]
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {which}".encode()))
        drawn = torch.randn(one.shape, generator=generator)
        drawn[one.token_rows or one.shape[0] :] = 0
        return drawn[part or ...].contiguous()

    def step(self, name: str) -> float:
        return float(STEP)

    def common_state(self) -> dict[str, Any]:
        group = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
        groups = [{**group, "names": [], "name": name, "params": [0]} for name in ("decay", "no_decay")]
        common = {"clip_grad": 1.0, "ds_version": deepspeed.__version__, "param_groups": groups}
        if self._precision == "bf16":
            return common
        scaling = {"loss_scaler": LossScaler(1.0), "dynamic_loss_scale": False, "overflow": False}
        return {**scaling, **common, "zero_stage": ZeroStageEnum.optimizer_states}


def make_checkpoint(root: Path, workers: int = 2, data: int = 1, **options: Any) -> Path:
    """Write a checkpoint for these options, with `data` replicas, into the new folder `root`; returns its folder."""
    given = {"train_iters": 20, "lr": 1e-3, "micro_batch_size": 1, "global_batch_size": data, **options}
    ranks = data * given.get("tensor_model_parallel_size", 1) * given.get("pipeline_model_parallel_size", 1)
    parsed = parse(to_arguments(given), ranks)
    vocabulary = Vocabulary.of(parsed.vocab_size, parsed)
    identity = Identity.of(parsed, ranks, vocabulary)
    parameters = saved_parameters(ModelShape.of(parsed, vocabulary))
    optimizer = "none" if parsed.no_save_optim else parsed.optimizer
    manifest = Manifest(
        iteration=STEP,
        consumed_train_samples=STEP * parsed.global_batch_size,
        consumed_train_tokens=STEP * parsed.global_batch_size * parsed.seq_length,
        consumed_valid_samples=0,
        precision=identity.precision,
        layout={**identity.layout, "optimizer": optimizer},
        model=identity.model,
        learning_rate=asdict(LearningRateSchedule.of(parsed)),
        files={},
        parameters=parameters,
        training=identity.training,
        settings=identity.settings,
    )
    state = _state(parsed, manifest)
    files = NativeFiles(
        states=DrawnStates(parameters, identity.precision, optimizer),
        parameters=parameters,
        cut=Cut.of(manifest.layout),
        precision=identity.precision,
        client_state=lambda _rank: state,
    )
    write_native(files, root, manifest, workers)
    return root / tag_of(STEP)


def _state(options: Options, manifest: Manifest) -> dict[str, Any]:
    """Return what the engine and the training say of themselves."""
    engine = {"module": None, "optimizer": None, "lr_scheduler": None, "global_steps": STEP, "skipped_steps": 0}
    versions = {"ds_config": engine_config(options), "ds_version": deepspeed.__version__}
    model = manifest.model
    sizes = {"padded_vocab_size": model["padded_vocab_size"], "original_vocab_size": model["vocab_size"]}
    return {
        **engine,
        **versions,
        "args": dict(options),
        "iteration": STEP,
        "tokens": manifest.consumed_train_tokens,
        "consumed_train_samples": manifest.consumed_train_samples,
        "consumed_valid_samples": 0,
        "checkpoint_info": sizes,
        INFO: universal_checkpoint_info(model),
    }


def bytes_of_largest_state(manifest: Manifest) -> int:
    """One state of the largest parameter, in fp32."""
    return 4 * max(math.prod(one.shape) for one in manifest.parameters)
