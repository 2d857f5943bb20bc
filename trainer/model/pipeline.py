"""The GPT as DeepSpeed's pipeline of layers, numbered as Megatron-DeepSpeed numbers them.

0 pass on, 1 embedding, 2 pass on, 3 ... L+2 blocks, L+3 pass on, L+4 final LayerNorm, L+5 output layer (the embedding
again, or a weight of its own). The checkpoint has a file per layer that owns weights: layer_01, layer_03 ...
layer_{L+2}, layer_{L+4}, and layer_{L+5} where the output layer is untied.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import Tensor, nn

from trainer.model.attention import again
from trainer.model.block import TransformerBlock
from trainer.model.dropout import DropoutClock, has_dropout
from trainer.model.embedding import Embedding, OutputLayer, output_layer, pass_on
from trainer.model.weights import LayerWeights, Norm
from trainer.parallel.cross_entropy import Accumulation, masked_mean_cross_entropy
from trainer.parallel.process_groups import Parallel
from trainer.parallel.sequence import split_over_tensor_ranks
from trainer.recipe.layout import stage_sizes
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import FIRST_BLOCK_LAYER, final_parameters


class FinalNorm(Norm):
    """The LayerNorm after the last block: parameters `weight` and, if there is one, `bias`."""

    def __init__(self, shape: ModelShape, parallel: Parallel) -> None:
        super().__init__(shape, LayerWeights(final_parameters(shape), shape, parallel), "")


class GPTPipeline(PipelineModule):
    """The stage of the model on this rank.

    A model with dropout trains on (inputs, [index in the training of the micro-batch's first sample]), and each stage
    passes the index to the next; evaluation and models without dropout have the inputs alone. Where documents are kept
    apart, the start of each token's comes after the inputs, and is passed on too. With `masks_labels` the
    loss of a micro-batch is its part of the global batch's mean over the labels that count, whose number `counts` sets.
    """

    def __init__(
        self,
        shape: ModelShape,
        parallel: Parallel,
        partition_method: str,
        blocks_per_checkpoint: int = 0,
        recompute_attention: bool = False,
        synchronize_replicated: bool = False,
        split_checkpoints: bool = False,
        masks_labels: bool = False,
        z_loss: float = 0.0,
    ) -> None:
        self.shape, self.parallel = shape, parallel
        self.clock = DropoutClock(shape.seed)
        self.synchronize_replicated, self.split_checkpoints = synchronize_replicated, split_checkpoints
        self.has_dropout, self.masks_labels = has_dropout(shape), masks_labels
        self.has_documents = shape.splits_documents or shape.resets_positions
        # Index of each micro-batch's first sample, where the host knows it: it waits for a GPU that has to say it.
        self.places: Iterator[int] | None = None
        # DeepSpeed prints its plan, which `opsctl plan` shows better; and it broadcasts tied weights, which autograd
        # would otherwise note and warn of in every backward pass.
        with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            super().__init__(
                layers=layer_specs(shape, parallel, self.clock, recompute_attention),
                topology=parallel.topology,
                loss_fn=_Loss(shape.tokens, parallel, z_loss),
                partition_method=partition_method,
                activation_checkpoint_interval=blocks_per_checkpoint,
                activation_checkpoint_func=self._checkpointed,
            )

    def _partition_layers(self, method: str = "uniform") -> None:
        """DeepSpeed asks this: the layers of each stage, also where the method lists their blocks."""
        sizes = stage_sizes(method)
        if sizes is None:
            super()._partition_layers(method)
            return
        ends = [FIRST_BLOCK_LAYER + blocks for blocks in itertools.accumulate(sizes)]
        self.parts = [0, *ends[:-1], len(self._layer_specs)]
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])

    def begin_step(self) -> None:
        """Before every training step: average what tensor-parallel ranks hold in common, when asked for. Collective."""
        if self.synchronize_replicated and self.parallel.tensor_size > 1:
            average_replicated(self, self.parallel)

    def counts(self, labels: float, micro_batches: int) -> None:
        """Before a global batch: in its `micro_batches`, on this replica of the model, so many labels count.

        Collective over the replicas, on the last pipeline stage.
        """
        counted = torch.tensor(labels, dtype=torch.float64, device=self.parallel.device)
        dist.all_reduce(counted, group=self.parallel.data_group)
        self.loss_fn.counted = (counted / (micro_batches * self.parallel.data_size)).float()

    @property
    def output_weight(self) -> nn.Parameter:
        """The weight of the logits on the last stage, this rank's rows: the word embedding, unless it is untied."""
        if self.shape.tied:
            return cast(nn.Parameter, self.tied_modules["embed"].word_embeddings.weight)
        return cast(nn.Parameter, self.forward_funcs[-1].weight)

    def forward(self, forward_input: Any) -> Any:
        """Return the stage's output, with the index if it came with one and another stage follows.

        Raises ValueError when a model with dropout trains on inputs alone.
        """
        inputs, *passed = forward_input if isinstance(forward_input, tuple) else (forward_input,)
        draws, sample = self.training and self.has_dropout, 0
        starts_bs = passed[0] if self.has_documents and len(passed) > draws else None
        if draws:
            if len(passed) == (starts_bs is not None):
                raise ValueError("a model with dropout trains on micro-batches that carry their first sample's index")
            sample = int(passed[-1]) if self.places is None else next(self.places)
        with self.clock.at(sample, starts_bs):
            outputs = super().forward(inputs)
        return outputs if self.parallel.is_last_stage or not passed else (outputs, *passed)

    def _checkpointed(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Run without keeping activations; the recomputation draws the same dropout masks.

        With `split_checkpoints` each tensor-parallel rank keeps its part of what the blocks began with.
        """
        with split_over_tensor_ranks(self.parallel) if self.split_checkpoints else contextlib.nullcontext():
            return again(function, self.clock, *inputs)

    def _is_checkpointable(self, funcs: list[Any]) -> bool:
        """DeepSpeed asks this for each run of layers: those with blocks, without the output layer."""
        owns_weights = all(isinstance(one, nn.Module) or one is pass_on for one in funcs)
        return owns_weights and any(isinstance(one, TransformerBlock) for one in funcs)


class _Loss:
    """The last stage's loss, as DeepSpeed calls it: (what the output layer returned, labels and mask) -> scalar."""

    __name__ = "masked_mean_cross_entropy"

    def __init__(self, vocabulary: int, parallel: Parallel, z_loss: float) -> None:
        self.vocabulary, self.parallel, self.z_loss = vocabulary, parallel, z_loss
        self.factor = 1.0  # another one is a drill
        self.counted: Tensor | None = None  # labels in a micro-batch of the global batch, on average, where some do not
        self.accumulation: Accumulation | None = None  # the engine's, once there is one

    def __call__(self, outputs: tuple[Tensor, Tensor], labels: tuple[Tensor, Tensor]) -> Tensor:
        x_bsh, weight_vh = outputs
        labels_bs, mask_bs = labels
        return masked_mean_cross_entropy(
            x_bsh,
            weight_vh,
            labels_bs,
            mask_bs,
            self.vocabulary,
            self.parallel,
            self.counted,
            self.factor,
            self.accumulation,
            self.z_loss,
        )


def layer_specs(
    shape: ModelShape,
    parallel: Parallel,
    clock: DropoutClock,
    recompute_attention: bool = False,
) -> list[Any]:
    """All layers of the model in their numbered places; DeepSpeed builds those of its stage."""
    # Where nothing is tied the embedding stands in this one place alone, and its parameters are called as ever.
    tied = {"tied_weight_attr": ["word_embeddings.weight"]}
    again = TiedLayerSpec("embed", Embedding, shape, parallel, clock, forward_fn=output_layer, weight_only=True, **tied)
    return [
        pass_on,
        TiedLayerSpec("embed", Embedding, shape, parallel, clock, **tied),
        pass_on,
        *(
            LayerSpec(TransformerBlock, shape, layer, parallel, clock, recompute_attention)
            for layer in range(shape.layers)
        ),
        pass_on,
        LayerSpec(FinalNorm, shape, parallel),
        again if shape.tied else LayerSpec(OutputLayer, shape, parallel),
    ]


def average_replicated(module: nn.Module, parallel: Parallel) -> None:
    """Set every parameter that tensor-parallel ranks hold whole to the ranks' average, in place.

    They receive equal gradients and should never differ; BLOOM's did, and this is the switch its training ran with.
    """
    replicated = [one for one in module.parameters() if not getattr(one, "tensor_model_parallel", False)]
    if not replicated:
        return
    with torch.no_grad():
        flat = torch.cat([one.reshape(-1).float() for one in replicated])
        dist.all_reduce(flat, group=parallel.tensor_group)
        flat /= parallel.tensor_size
        for one, mean in zip(replicated, flat.split([one.numel() for one in replicated]), strict=True):
            one.copy_(mean.view_as(one))


#: Tokens alone or with the index of the first sample, and (labels, mask).
EngineItem = tuple[Tensor | tuple[Tensor, ...], tuple[Tensor, Tensor]]


def engine_item(
    samples: Tensor,
    end_of_document: int | None = None,
    first_sample: int | None = None,
    masks_loss: bool = True,
    with_starts: bool = False,
) -> EngineItem:
    """One micro-batch of samples, [micro-batch, sequence + 1] token ids, as (tokens_bs, (labels_bs, mask_bs)).

    With `first_sample`, the index in the training of its first sample, it is ((tokens_bs, [first_sample]), ...): a
    model with dropout trains on these, and its stages pass the index on. The label of each token is the next one; the
    mask (fp32) is 1 where the label counts: everywhere, or, with `end_of_document` (for --eod-mask-loss), not where the
    input is that token and `masks_loss`. With `with_starts` the start of each token's document is after the tokens: a
    document ends with that token.
    """
    samples = samples.long()
    tokens_bs, labels_bs = samples[:, :-1].contiguous(), samples[:, 1:].contiguous()
    mask_bs = torch.ones(tokens_bs.shape, dtype=torch.float32, device=samples.device)
    if end_of_document is not None and masks_loss:
        mask_bs[tokens_bs == end_of_document] = 0
    inputs = [tokens_bs]
    if with_starts and end_of_document is not None:
        next_s = torch.arange(1, tokens_bs.shape[1] + 1, device=tokens_bs.device)
        after_bs = torch.where(tokens_bs.eq(end_of_document), next_s, 0).cummax(dim=1).values
        inputs.append(nn.functional.pad(after_bs[:, :-1], (1, 0)))
    if first_sample is not None:
        inputs.append(torch.tensor([first_sample]))
    return inputs[0] if len(inputs) == 1 else tuple(inputs), (labels_bs, mask_bs)
