"""Tokens into the residual stream, and, with the same weight, out of it again."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.model.dropout import DropoutClock, dropout
from trainer.model.weights import LayerNorm, LayerWeights
from trainer.parallel.process_groups import Parallel
from trainer.parallel.tensor_parallel import VocabParallelEmbedding
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import embedding_parameters

_LAYER = -1  # the embedding's number in the dropout's seed


class Positions(nn.Module):
    """length -> [length, hidden]: one learned row for each position."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, length: int) -> Tensor:
        """The first `length` rows, as a view."""
        return self.weight[:length]


class Embedding(nn.Module):
    """tokens_bs -> x_bsh: word embedding, its LayerNorm if wanted, learned positions unless ALiBi, dropout.

    The last pipeline stage has a copy with `weight_only`: the word embedding, which is the output layer too.
    """

    def __init__(self, shape: ModelShape, parallel: Parallel, clock: DropoutClock, weight_only: bool = False) -> None:
        super().__init__()
        self.shape, self.clock = shape, clock
        weights = LayerWeights(embedding_parameters(shape), shape, parallel)
        self.word_embeddings = VocabParallelEmbedding(weights["word_embeddings.weight"], shape.tokens, parallel)
        if weight_only:
            return
        if shape.embedding_layernorm:
            self.word_embeddings.norm = LayerNorm(*weights.pair("word_embeddings.norm"), shape.layernorm_epsilon)
        if not shape.alibi:
            self.position_embeddings = Positions(weights["position_embeddings.weight"])

    def forward(self, tokens_bs: Tensor) -> Tensor:
        """tokens_bs (int64) -> x_bsh. Raises ValueError for a token beyond the vocabulary, on a CPU."""
        x_bsh = self.word_embeddings(tokens_bs)
        if not self.shape.alibi:
            x_bsh = x_bsh + self.position_embeddings(tokens_bs.shape[1])
        return dropout(x_bsh, self.shape.hidden_dropout, self.training, self.clock, _LAYER, "embedding")


def output_layer(embedding: Embedding, x_bsh: Tensor) -> tuple[Tensor, Tensor]:
    """What the loss multiplies into logits: the residual stream and the word embedding.

    The product is left to the loss, which never holds all logits at once. The weight goes out as a view: DeepSpeed
    hooks the model's outputs to scale their gradients, and a hook on the parameter itself would stay there for ever.
    """
    weight_vh = embedding.word_embeddings.weight
    return x_bsh, weight_vh.view_as(weight_vh)


def pass_on(x: torch.Tensor) -> torch.Tensor:
    """Stands where Megatron's pipeline casts or transposes, so that layers and their files have its numbers."""
    return x
