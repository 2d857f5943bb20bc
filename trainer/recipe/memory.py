"""The memory of a rank: weights, gradients, optimizer states and activations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from trainer.recipe.activations import MicroBatch, attends_by_softmax, kernel_families
from trainer.recipe.layout import Layout, blocks_per_stage, splits_sequence
from trainer.recipe.model_options import ATTENTION, BLOCK, NONE, is_half, recomputed
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import block_parameters, word_embedding
from trainer.recipe.sizes import HALF_BYTES_PER_PARAMETER, parameters_of_ranks

MIB = 2**20
_FP32 = 4
#: The engine's bucket for gradients of bf16, in elements.
_BF16_BUCKET = 500_000_000
#: A CPU process's memory besides everything else: pages of libraries that training uses first, the
#: processor's own kernels, gloo's buffers. Measured.
_CPU_PROCESS_BYTES = {"fp32": 44 * MIB, "bf16": 58 * MIB}
#: torch's compiler, which torch 2.13 imports for recomputation. Measured: 816 modules.
_RECOMPUTATION_BYTES = 71 * MIB


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """The peak memory of one rank in bytes, by purpose. `moment` is the time of the peak."""

    moment: str  # "backward" or "reduction"
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int  # this rank's share of fp32 weights and both moments
    buckets_bytes: int = 0  # copies of gradients for the reduction
    activations_bytes: int = 0  # of all micro-batches in flight
    working_bytes: int = 0  # of the block or the loss whose gradients are computed
    pipeline_bytes: int = 0  # messages between stages
    process_bytes: int = 0  # of a process on a CPU, besides everything else

    @property
    def peak_bytes(self) -> int:
        """The sum of all parts."""
        return sum(getattr(self, one.name) for one in fields(self) if one.name != "moment")


def rank_memory(
    options: Mapping[str, Any],
    shape: ModelShape,
    layout: Layout,
    stage: int,
    on_cpu: bool = False,
    keeps_weights: bool = False,
) -> RankMemory:
    """Return the peak of a rank of one pipeline stage, from the second step on, at the full batch.

    on_cpu, keeps_weights: as `MicroBatch` has them.
    Raises ValueError where ranks cannot share a layer alike, or the blocks do not divide.
    """
    stages = blocks_per_stage(shape.layers, layout.pipeline, options["pp_partition_method"])
    held = parameters_of_ranks(shape, stages, layout.tensor)[stage]
    in_fp32 = shape.precision == "bf16" or (shape.precision == "fp16" and options["accumulate_allreduce_grads_in_fp32"])
    in_place = options["kernels"] != "torch" and options["optimizer"] == "adam"
    bucket = options["zero_reduce_bucket_size"]
    states = _States(shape.precision, held, layout.data, bucket, in_fp32, on_cpu, in_place)
    flow = _Flow(options, micro_batch(options, shape, layout, on_cpu, keeps_weights), layout, stage, stages[stage])
    process = _process_bytes(shape.precision, flow.batch.recompute) if on_cpu else 0
    return max(states.at_reduction(process), *states.at_backward(flow, process), key=lambda one: one.peak_bytes)


def _process_bytes(precision: str, recompute: str) -> int:
    """Return the bytes of a process on a CPU besides everything else."""
    return _CPU_PROCESS_BYTES.get(precision, 0) + (0 if recompute == NONE else _RECOMPUTATION_BYTES)


def fullest_rank(
    options: Mapping[str, Any], shape: ModelShape, layout: Layout, before_ampere: bool = False
) -> tuple[int, RankMemory]:
    """Return the stage whose ranks need most memory on a GPU, and their memory. Raises as `rank_memory` does."""
    keeps = attends_by_softmax(options, before_ampere)
    found = [
        (stage, rank_memory(options, shape, layout, stage, keeps_weights=keeps)) for stage in range(layout.pipeline)
    ]
    return max(found, key=lambda one: one[1].peak_bytes)


def micro_batch(
    options: Mapping[str, Any],
    shape: ModelShape,
    layout: Layout,
    on_cpu: bool = False,
    keeps_weights: bool = False,
) -> MicroBatch:
    """Return the options' micro-batch on a rank."""
    return MicroBatch(
        shape,
        options["micro_batch_size"],
        options["seq_length"],
        layout.tensor,
        recomputed(options),
        sequence_parallel=splits_sequence(options),
        split_checkpoints=options["partition_activations"] or options["distribute_checkpointed_activations"],
        on_cpu=on_cpu,
        keeps_weights=keeps_weights,
        kernels=kernel_families(options),
    )


def micro_batches(options: Mapping[str, Any], layout: Layout) -> int:
    """Return the micro-batches of each replica in a step at the full batch, at least one."""
    batch: int = options["global_batch_size"] or 0
    micro: int = options["micro_batch_size"]
    return max(1, batch // (micro * layout.data))


@dataclass(frozen=True)
class _States:
    """The weights, gradients and optimizer states of a rank with so many parameters."""

    precision: str
    held: int
    data: int
    bucket: int  # elements
    sums_in_fp32: bool  # gradients of several micro-batches
    on_cpu: bool
    adam_in_place: bool  # it reads the gradients in place

    @property
    def weights(self) -> int:
        return self.held * (HALF_BYTES_PER_PARAMETER if is_half(self.precision) else _FP32)

    @property
    def optimizer(self) -> int:
        return 3 * _FP32 * self._share

    @property
    def _share(self) -> int:
        return math.ceil(self.held / self.data)

    @property
    def lasting_gradients(self) -> int:
        """The bytes held from step to step: half-precision gradients are added up in an fp32 copy of all."""
        return _FP32 * self.held if self.sums_in_fp32 else 0

    @property
    def step_gradients(self) -> int:
        """The bytes of autograd's gradients within a step. bf16 adds each to its sum at once."""
        return 0 if self.precision == "bf16" else self.weights

    def at_reduction(self, process: int) -> RankMemory:
        """Return the memory when gradients are reduced and the optimizer steps."""
        return RankMemory(
            moment="reduction",
            weights_bytes=self.weights,
            gradients_bytes=self.lasting_gradients + self.step_gradients,
            optimizer_bytes=self.optimizer,
            buckets_bytes=self._buckets(),
            process_bytes=process,
        )

    def _buckets(self) -> int:
        """Return the bytes of buffers besides the computed gradients.

        bf16 copies all gradients into one bucket if they fit, and otherwise reduces them in place. ZeRO stage 1 has a
        buffer of the bucket's size if there are several replicas. Without Adam's kernel, the engine copies this rank's
        share of the gradients to fp32 and concatenates it.
        """
        if self.precision == "bf16":
            return _FP32 * self.held if self.held <= _BF16_BUCKET else 0
        each = _FP32 if self.sums_in_fp32 else self.weights // self.held
        # A CPU's memory is used once written to.
        buffer = each * (min(self.bucket, self.held) if self.on_cpu else self.bucket) if self.data > 1 else 0
        copies = 0 if self.adam_in_place else 2 * _FP32 * self._share - each * self.held
        return max(buffer, copies)

    def at_backward(self, flow: _Flow, process: int) -> list[RankMemory]:
        """Return the memory in the first backward pass of a step, in later ones with all in flight, and in the last."""
        many = min(flow.in_flight, flow.micro_batches - 1)
        cases = [
            (flow.in_flight, flow.working, self._of_output_layer(flow)),
            (max(0, flow.in_flight - 1), flow.ending, self.step_gradients),
        ]
        if many:
            cases.append((many, flow.working, self.step_gradients))
        return [
            RankMemory(
                moment="backward",
                weights_bytes=self.weights,
                gradients_bytes=self.lasting_gradients + gradients,
                optimizer_bytes=self.optimizer,
                activations_bytes=count * flow.kept,
                working_bytes=working,
                pipeline_bytes=flow.pipeline,
                process_bytes=process,
            )
            for count, working, gradients in cases
        ]

    def _of_output_layer(self, flow: _Flow) -> int:
        """Return the bytes of the output layer's gradient, which the first loss makes before any backward pass."""
        return _FP32 * flow.output_weight if self.precision == "fp32" else 0


class _Flow:
    """The activations of a rank in a step, and what its backward passes hold besides, in bytes."""

    def __init__(self, options: Mapping[str, Any], batch: MicroBatch, layout: Layout, stage: int, blocks: int) -> None:
        first, last = stage == 0, stage == layout.pipeline - 1
        self.batch = batch
        self.micro_batches = micro_batches(options, layout)
        self.in_flight = min(layout.pipeline - stage, self.micro_batches)
        together = options["checkpoint_num_layers"] if batch.recompute == BLOCK else 1
        kept = math.ceil(blocks / together) * batch.block_bytes()
        self.kept = kept + (batch.embedding_bytes() if first else 0) + (batch.final_bytes() if last else 0)
        block = _working_of_block(batch, min(together, blocks))
        sums_weight = batch.shape.precision == "fp16" and not options["accumulate_allreduce_grads_in_fp32"]
        self.working = max(block - batch.final_bytes(), batch.loss_bytes(sums_weight)) if last else block
        self.output_weight = word_embedding(batch.shape).size // batch.tensor if last else 0
        shared, own = batch.mask_bytes()
        if batch.recompute == NONE:
            self.kept += own
        else:  # it is made again for each block
            shared += own
        self.working += shared
        self.ending = (self._of_embedding(batch) if first else block) + shared
        # Forth: every output in flight and the buffer of a gradient. Back: the buffer of an input, every input in
        # flight, which the first block copies, and the gradient of the last one, which is being sent.
        forth, back = 0 if last else self.in_flight + 1, 0 if first else self.in_flight + 2
        self.pipeline = (forth + back) * batch.stream_bytes

    def _of_embedding(self, batch: MicroBatch) -> int:
        """Return the bytes of the word embedding's gradient, which is complete before it is added to the others."""
        return word_embedding(batch.shape).size // batch.tensor * batch.element_bytes


def _working_of_block(batch: MicroBatch, together: int) -> int:
    """Return the most bytes while a block's gradients are computed, beyond what the forward pass keeps.

    together: blocks that are recomputed at once; what they keep exists then, except the first one's input, which is
    kept. The moments are the backward passes of the MLP's last product, of its activation, of its first products and of
    attention; what an earlier one has read is freed. Sequence parallelism gathers the stream's gradient and the input.
    """
    stream, whole, width = batch.stream_bytes, batch.whole_stream_bytes, batch.width_bytes
    weight = max(math.prod(one.rank_shape(batch.tensor)) for one in block_parameters(batch.shape, 0))
    weight *= batch.element_bytes
    products = 2 if batch.shape.gate else 1
    freed = batch.mlp_bytes()
    last = stream + width + weight + (whole if batch.sequence_parallel else 0)
    activation = stream + products * width
    first = stream + products * (width + weight + whole) - freed
    if batch.sequence_parallel:
        first += whole + batch.scattering_bytes()
    attention = batch.attention_gradients_bytes() + stream - freed - batch.norm_bytes() - stream
    if batch.recompute == ATTENTION:
        attention += batch.attention_bytes() - batch.recomputed_attention_bytes()
    again = 0
    if batch.recompute == BLOCK:
        again = together * batch.whole_block_bytes() - (0 if batch.split_checkpoints else stream)
    return again + max(last, activation, first, attention)
