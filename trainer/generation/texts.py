"""Text generation with a checkpoint's model, which is loaded whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from trainer.checkpoint.saved_state import SavedState
from trainer.convert.hf.documents import TOKENIZER, tokenizer_files
from trainer.convert.hf.saved_model import PRECISIONS, saved_options, saved_shape
from trainer.data.encoder import Encoder
from trainer.engine.ranks import initialize
from trainer.formats.checkpoint.manifest import Found, Manifest
from trainer.formats.errors import CheckpointError
from trainer.model.pipeline import GPTPipeline
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options


def next_token(logits_v: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    """Return one token of the vocabulary. logits_v: [vocabulary], any dtype.

    temperature 0 is greedy: the first of the most likely. Otherwise the token is drawn from softmax(logits /
    temperature), of the `top_k` most likely if that is not 0. Raises CheckpointError for logits that are not numbers.
    """
    if not bool(logits_v.isfinite().all()):
        raise CheckpointError("the model's logits are not numbers: if its training diverged, use an earlier checkpoint")
    if temperature == 0:
        return int(logits_v.argmax())
    wide_v = logits_v.double()
    scaled_v = (wide_v - wide_v.max()) / temperature  # the largest is 0, so that none overflows
    if 0 < top_k < len(scaled_v):
        kept, places = scaled_v.topk(top_k)
        return int(places[torch.multinomial(torch.softmax(kept, 0), 1, generator=generator)])
    return int(torch.multinomial(torch.softmax(scaled_v, 0), 1, generator=generator))


#: The layout and settings of a model in one process, for any training's checkpoint.
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
    """A checkpoint's model, ready for use, on a GPU if there is one, else on the CPU.

    dtype: as `--dtype` names them; None is float32 on a CPU and the saved type on a GPU. Raises CheckpointError,
    OSError.
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
        # Do not initialise weights that are overwritten at once.
        self.shape: ModelShape = dataclasses.replace(shape, precision=precision, init_std=0.0)
        computed_in = {"bf16": precision == "bf16", "fp16": precision == "fp16"}
        parallel = initialize(Options({**self.options, **_ALONE, **computed_in}), alone=True)
        self._model = GPTPipeline(self.shape, parallel, "uniform")
        self._device = parallel.device
        self._fill(state)
        self._model.eval()

    def logits(self, tokens: list[int]) -> Tensor:
        """Return the logits of the token after `tokens`, [vocabulary], without the vocabulary's padding."""
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
                    raise CheckpointError(f"{state.folder} belongs to another model: its {place} does not fit")
                parameter.copy_(state.weight(name))
                missing.discard(name)
        if missing:
            raise CheckpointError(f"{state.folder} belongs to another model, which also has {min(missing)}")

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (LAYER.NAME in the checkpoint's files, weight) of all parameters, also of tied ones."""
        for name, parameter in self._model.named_parameters():
            yield name.replace("tied_modules.embed.", "1."), parameter


#: The reasons why a text ends.
LENGTH, DOCUMENT, POSITIONS = "as long as wanted", "the end of a document", "no more positions"


class Speaker:
    """A model with its tokenizer. Raises CheckpointError if there is none, or it is another model's."""

    def __init__(self, model: LoadedModel, manifest: Manifest, tokenizer: Path | None) -> None:
        self.model = model
        trained_with, length = manifest.training.get("tokenizer"), int(model.options["seq_length"])
        found = tokenizer_files(model.options, trained_with, model.shape.tokens, length, tokenizer)
        if found is None:
            raise CheckpointError("the training had no tokenizer, only a vocabulary size: give --tokenizer")
        self._tokenizer = Tokenizer.from_str(found.texts[TOKENIZER])
        self._encoder = Encoder(Tokenizer.from_str(found.texts[TOKENIZER]))
        self._end = found.special["eos_token_id"]

    def tokens_of(self, prompt: str) -> list[int]:
        """Return the prompt's tokens; for an empty prompt the end of a document. Raises CheckpointError if too long."""
        tokens = self._encoder.encode(prompt)
        if not tokens and self._end is None:
            raise CheckpointError("--prompt is empty, and the tokenizer has no end of a document to start from")
        tokens = tokens or [int(self._end or 0)]
        most = self.model.shape.positions
        if most and len(tokens) >= most:
            raise CheckpointError(f"--prompt has {len(tokens)} tokens, the model {most} positions: give a shorter one")
        return tokens

    def go_on(
        self, tokens: list[int], new_tokens: int, temperature: float, top_k: int, seed: int
    ) -> tuple[list[int], str]:
        """Return the next tokens, without the end of a document, and the reason why generation ended."""
        generator, new = torch.Generator().manual_seed(seed), []  # type: torch.Generator, list[int]
        while len(new) < new_tokens:
            if self.model.shape.positions and len(tokens) + len(new) >= self.model.shape.positions:
                return new, POSITIONS
            found = next_token(self.model.logits([*tokens, *new]), temperature, top_k, generator)
            if found == self._end:
                return new, DOCUMENT
            new.append(found)
        return new, LENGTH

    def text_of(self, tokens: list[int], new: list[int]) -> str:
        """Return the text that `new` adds to that of `tokens`. One character may be split over both."""
        before, whole = (self._tokenizer.decode(one, skip_special_tokens=False) for one in (tokens, [*tokens, *new]))
        return str(whole[len(before) :] if whole.startswith(before) else self._tokenizer.decode(new))
