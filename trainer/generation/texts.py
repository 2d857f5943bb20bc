"""A checkpoint's model that continues texts: loaded whole, token after token."""

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
    """One token of the vocabulary. logits_v: [vocabulary], any dtype.

    temperature 0 is greedy: the first of the most likely. Else it is drawn from softmax(logits / temperature), of the
    `top_k` most likely where that is not 0. Raises CheckpointError for logits that are no numbers.
    """
    if not bool(logits_v.isfinite().all()):
        raise CheckpointError("the model's logits are no numbers: did its training diverge? Take an earlier checkpoint")
    if temperature == 0:
        return int(logits_v.argmax())
    wide_v = logits_v.double()
    scaled_v = (wide_v - wide_v.max()) / temperature  # the largest is 0, so that none overflows
    if 0 < top_k < len(scaled_v):
        kept, places = scaled_v.topk(top_k)
        return int(places[torch.multinomial(torch.softmax(kept, 0), 1, generator=generator)])
    return int(torch.multinomial(torch.softmax(scaled_v, 0), 1, generator=generator))


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


#: Why a text ends.
LENGTH, DOCUMENT, POSITIONS = "as long as wanted", "the end of a document", "no more positions"


class Speaker:
    """A model with its tokenizer. Raises CheckpointError where there is none, or it is not the model's."""

    def __init__(self, model: LoadedModel, manifest: Manifest, tokenizer: Path | None) -> None:
        self.model = model
        trained_with, length = manifest.training.get("tokenizer"), int(model.options["seq_length"])
        found = tokenizer_files(model.options, trained_with, model.shape.tokens, length, tokenizer)
        if found is None:
            raise CheckpointError("the training knew no tokenizer, only how many tokens there are: give --tokenizer")
        self._tokenizer = Tokenizer.from_str(found.texts[TOKENIZER])
        self._encoder = Encoder.fastest(Tokenizer.from_str(found.texts[TOKENIZER]))
        self._end = found.special.end

    def tokens_of(self, prompt: str) -> list[int]:
        """What the model is given: for an empty prompt the end of a document. Raises CheckpointError for too many."""
        tokens = self._encoder.encode(prompt)
        if not tokens and self._end is None:
            raise CheckpointError("--prompt is empty, and the tokenizer has no token between documents to begin with")
        tokens = tokens or [int(self._end or 0)]
        most = self.model.shape.positions
        if most and len(tokens) >= most:
            raise CheckpointError(f"--prompt has {len(tokens)} tokens, the model {most} positions: give a shorter one")
        return tokens

    def go_on(
        self, tokens: list[int], new_tokens: int, temperature: float, top_k: int, seed: int
    ) -> tuple[list[int], str]:
        """The tokens that follow, and why no more do; the end of a document is not among them."""
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
        """What `new` adds to the text of `tokens`; a character may be spread over both."""
        before, whole = (self._tokenizer.decode(one, skip_special_tokens=False) for one in (tokens, [*tokens, *new]))
        return str(whole[len(before) :] if whole.startswith(before) else self._tokenizer.decode(new))
