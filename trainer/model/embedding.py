"""Tokens into the residual stream, and, with the same weight or another one, out of it again."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.core.dtypes import DTYPES
from trainer.kernels.residual import added
from trainer.model.attention import positions_in_documents
from trainer.model.dropout import DropoutClock, dropped_at
from trainer.model.weights import LayerWeights, Norm
from trainer.parallel.process_groups import Parallel
from trainer.parallel.sequence import gradient_of_all_slices
from trainer.parallel.tensor_parallel import VocabParallelEmbedding
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import embedding_parameters, output_parameters

_LAYER = -1  # the embedding's number in the dropout's seed


class Positions(nn.Module):
    """Positions -> [length, hidden]: one learned row for each, or for each of this rank's slice of them."""

    def __init__(self, weight: nn.Parameter, parallel: Parallel) -> None:
        super().__init__()
        self.weight, self.parallel = weight, parallel

    def forward(self, length: int, positions_bs: Tensor | None = None) -> Tensor:
        """Return the first `length` rows as a view, or [b, s, hidden] of positions; or this rank's slice of them."""
        which, slices = self.parallel.sequence_part
        part = slice(which * length // slices, (which + 1) * length // slices)
        weight = gradient_of_all_slices(self.weight, self.parallel)
        return weight[part] if positions_bs is None else nn.functional.embedding(positions_bs[:, part], weight)


class Embedding(nn.Module):
    """tokens_bs -> x_bsh or a slice: word embedding, its LayerNorm if wanted, learned positions if there are, dropout.

    The last pipeline stage has a copy with `weight_only`: the word embedding, which is the output layer too unless that
    is untied.
    """

    def __init__(self, shape: ModelShape, parallel: Parallel, clock: DropoutClock, weight_only: bool = False) -> None:
        super().__init__()
        self.shape, self.parallel, self.clock = shape, parallel, clock
        # Rounded to the weights' type, as for published Gemmas.
        self.scale = float(torch.tensor(shape.embedding_scale, dtype=DTYPES[shape.precision]))
        weights = LayerWeights(embedding_parameters(shape), shape, parallel)
        self.word_embeddings = VocabParallelEmbedding(weights["word_embeddings.weight"], shape.tokens, parallel)
        if weight_only:
            return
        if shape.embedding_layernorm:
            self.word_embeddings.norm = Norm(shape, weights, "word_embeddings.norm")
        if shape.positions:
            self.position_embeddings = Positions(weights["position_embeddings.weight"], parallel)

    def forward(self, tokens_bs: Tensor) -> Tensor:
        """tokens_bs (int64) -> x_bsh. Raises ValueError for a token beyond the vocabulary, on a CPU."""
        x_bsh = self.word_embeddings(tokens_bs)
        if self.scale != 1:
            x_bsh = x_bsh * self.scale
        if self.shape.positions:
            positions_bs = positions_in_documents(self.clock.starts_bs) if self.shape.resets_positions else None
            x_bsh = x_bsh + self.position_embeddings(tokens_bs.shape[1], positions_bs)
        part = self.parallel.sequence_part
        dropped = dropped_at("embedding", x_bsh, self.shape.hidden_dropout, self.training, self.clock, _LAYER, part)
        return added(x_bsh, None, None, dropped, self.parallel.operations.residuals)


def output_layer(embedding: Embedding, x_bsh: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of the logits: the residual stream and the word embedding.

    The loss computes the product, and never holds all logits at once. The weight is returned as a view: DeepSpeed hooks
    the model's outputs to scale their gradients, and a hook on the parameter itself would stay permanently.
    """
    return _for_the_loss(x_bsh, embedding.word_embeddings.weight)


class OutputLayer(nn.Module):
    """An untied output layer: the factors of the logits are x_bsh and its own weight."""

    def __init__(self, shape: ModelShape, parallel: Parallel) -> None:
        super().__init__()
        self.weight = LayerWeights(output_parameters(shape), shape, parallel)["weight"]

    def forward(self, x_bsh: Tensor) -> tuple[Tensor, Tensor]:
        """As `output_layer`."""
        return _for_the_loss(x_bsh, self.weight)


def _for_the_loss(x_bsh: Tensor, weight_vh: Tensor) -> tuple[Tensor, Tensor]:
    return x_bsh, weight_vh.view_as(weight_vh)


def pass_on(x: torch.Tensor) -> torch.Tensor:
    """Stands where Megatron's pipeline casts or transposes, so that layers and their files have its numbers."""
    return x
