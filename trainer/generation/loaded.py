"""The trainer's own model, whole in this process, with the weights of a checkpoint of any layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from trainer.checkpoint.saved_state import SavedState
from trainer.convert.hf.saved_model import PRECISIONS, saved_options, saved_shape
from trainer.formats.checkpoint.manifest import Found
from trainer.formats.errors import CheckpointError
from trainer.model.pipeline import GPTPipeline
from trainer.parallel.process_groups import initialize
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options

#: How a model that is one process's own is laid out and run, whatever it was trained with.
_ALONE = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "distributed_backend": None,
    "log_level": "warning",
    "kernels": "auto",
    "attention": "auto",
    "abort_on_unmet_fused_kernel_constraints": False,
}


class LoadedModel:
    """A checkpoint's model, ready to be asked. On a GPU where there is one, else on the CPU.

    dtype: as `--dtype` names them; None is float32 on a CPU and as saved on a GPU. Raises CheckpointError, OSError.
    """

    def __init__(self, found: Found, dtype: str | None = None) -> None:
        state = SavedState(found.folder, found.manifest)
        client_state = state.client_state()
        self.options = saved_options(client_state, found.manifest)
        shape = saved_shape(self.options, client_state, found.manifest)
        if dtype is None:
            dtype = PRECISIONS[found.manifest.precision] if torch.cuda.is_available() else "float32"
        self.dtype = dtype
        precision = next(name for name, theirs in PRECISIONS.items() if theirs == dtype)
        # No weight is drawn that is overwritten right away.
        self.shape: ModelShape = dataclasses.replace(shape, precision=precision, init_std=0.0)
        computed_in = {"bf16": precision == "bf16", "fp16": precision == "fp16"}
        parallel = initialize(Options({**self.options, **_ALONE, **computed_in}), alone=True)
        self._model = GPTPipeline(self.shape, parallel, "uniform")
        self._device = parallel.device
        self._fill(state)
        self._model.eval()

    def logits(self, tokens: list[int]) -> Tensor:
        """[vocabulary]: of what follows `tokens`, without the vocabulary's padding."""
        with torch.inference_mode():
            x_bsh, weight_vh = self._model(torch.tensor([tokens], device=self._device))
            logits_v: Tensor = (x_bsh[0, -1] @ weight_vh.t())[: self.shape.tokens]
            return logits_v.float().cpu()

    def _fill(self, state: SavedState) -> None:
        places = {f"{one.layer}.{one.name_in_layer}": name for name, one in state.parameters.items()}
        missing = set(places.values())
        with torch.no_grad():
            for place, parameter in self._parameters():
                name = places.get(place)
                if name is None or state.parameters[name].shape != tuple(parameter.shape):
                    raise CheckpointError(f"{state.folder} is of another model: its {place} does not fit")
                parameter.copy_(state.weight(name))
                missing.discard(name)
        if missing:
            raise CheckpointError(f"{state.folder} is of another model, which has {min(missing)} too")

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        """(LAYER.NAME as the checkpoint's files have it, weight) of all; DeepSpeed keeps what is tied elsewhere."""
        for name, parameter in self._model.named_parameters():
            yield name.replace("tied_modules.embed.", "1."), parameter
