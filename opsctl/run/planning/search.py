"""Search layouts that fit the GPUs' memory, fastest first, with a model of a step's time. Pure.

A step of one replica takes (m + p - 1) turns of its slowest stage, m micro-batches through p stages, then the exchange
between replicas. A turn is arithmetic, the all-reduces of tensor-parallel ranks, and the transfers between stages.
No overlap is assumed. If the run's own speed is known, all seconds are scaled to it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from opsctl.core.errors import UsageError
from opsctl.core.output import table_lines
from opsctl.run.config.schema import ExpectTable, GpuTable, SlurmTable
from opsctl.run.planning.gpus import Gpu, gpu_of
from opsctl.run.planning.plan import FittingLayout, LayoutSearch, SearchedGpu
from opsctl.run.planning.sizes import model_shape
from trainer.recipe.layout import Layout, blocks_per_stage, layout_if_any
from trainer.recipe.memory import RankMemory, fullest_rank, micro_batch, micro_batches
from trainer.recipe.model_options import ATTENTION, BLOCK, NONE, recomputed
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options
from trainer.recipe.schedule import BatchRamp
from trainer.recipe.sizes import PASSES, parameters_of_ranks, step_flops

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
#: Usable share of a GPU's memory: the rest is for its libraries and for fragmentation.
USABLE = 0.9
#: Share of the stated peak that large products reach, and the tokens of a micro-batch at which they reach half of it.
_KERNELS, _HALF_AT_TOKENS = 0.6, 256
#: All-reduces of a block: two forward, two backward, two more if it is recomputed. Sequence parallelism sends as much
#: in halves of them, and two more halves backward, where it gathers slices again.
_SUMS, _SUMS_RECOMPUTED, _SUMS_OF_SLICES = 4, 6, 1
_FP32 = 4


@dataclass(frozen=True)
class Turn:
    """The seconds of one micro-batch on the slowest stage, by cause."""

    compute_s: float
    tensor_s: float
    stages_s: float

    @property
    def all_s(self) -> float:
        """Return the sum, without overlap."""
        return self.compute_s + self.tensor_s + self.stages_s


@dataclass(frozen=True)
class Candidate:
    """One layout with its micro-batch and recomputation, and its costs."""

    layout: Layout
    micro_batch: int
    recompute: str
    micro_batches: int
    memory: RankMemory
    turn: Turn
    replicas_s: float

    @property
    def bubble(self) -> float:
        """Return (p - 1) / m: idle turns of a stage per working turn."""
        return (self.layout.pipeline - 1) / self.micro_batches

    @property
    def step_s(self) -> float:
        """Return the seconds of a step at the full batch, unscaled."""
        return self.turn.all_s * self.micro_batches * (1 + self.bubble) + self.replicas_s

    @property
    def waiting(self) -> float:
        """Return the share of a step that is neither arithmetic nor bubble."""
        return 1 - self.turn.compute_s * (self.micro_batches + self.layout.pipeline - 1) / self.step_s

    @property
    def memory_gb(self) -> float:
        """Return the peak memory of the fullest GPU, in GB (10^9 bytes)."""
        return self.memory.peak_bytes / 1e9


@dataclass(frozen=True)
class Search:
    """The layouts that fit, fastest first, and the one with the least memory."""

    fitting: tuple[Candidate, ...]
    smallest: Candidate | None  # None: no layout divides the model and the batch


def search(options: Options, shape: ModelShape, gpus: int, per_node: int, gpu: Gpu) -> Search:
    """Try every TP x PP x DP x micro-batch that divides, each with the least recomputation that fits.

    TP stays within a node. The batch must be divisible at every stage of its ramp-up.
    """
    fitting: list[Candidate] = []
    smallest: Candidate | None = None
    for layout, micro in _divisions(options, shape, gpus, per_node):
        for recompute in (NONE, ATTENTION, BLOCK):
            one = candidate(options, shape, layout, micro, recompute, per_node, gpu)
            if one is None:
                break
            if smallest is None or one.memory_gb < smallest.memory_gb:
                smallest = one
            if one.memory_gb <= gpu.memory_gb * USABLE:
                fitting.append(one)
                break
    fitting.sort(key=lambda one: (one.step_s, one.memory_gb, one.layout.tensor))
    return Search(tuple(fitting), smallest)


def _divisions(options: Options, shape: ModelShape, gpus: int, per_node: int) -> Iterator[tuple[Layout, int]]:
    ramp = BatchRamp.of(options)
    batches = math.gcd(ramp.start, ramp.increment, ramp.global_batch_size) if ramp.is_ramp else ramp.global_batch_size
    for tensor in range(1, min(per_node, gpus) + 1):
        if per_node % tensor or gpus % tensor or shape.heads % tensor:
            continue
        if shape.groups % tensor and tensor % shape.groups:
            continue
        for pipeline in range(1, min(gpus // tensor, shape.layers) + 1):
            if (gpus // tensor) % pipeline:
                continue
            layout = Layout(gpus, tensor, pipeline, gpus // tensor // pipeline)
            yield from ((layout, micro) for micro in MICRO_BATCHES if batches % (micro * layout.data) == 0)


def candidate(
    options: Options, shape: ModelShape, layout: Layout, micro: int, recompute: str, per_node: int, gpu: Gpu
) -> Candidate | None:
    """Return the costs of this choice; None if blocks or weights are not divisible by it."""
    chosen = options.replace(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        micro_batch_size=micro,
        recompute=recompute,
        checkpoint_activations=False,
        deepspeed_activation_checkpointing=False,
    )
    try:
        _, memory = fullest_rank(chosen, shape, layout, gpu.is_before_ampere)
    except ValueError:
        return None
    count = micro_batches(chosen, layout)
    turn = turn_of(chosen, shape, layout, per_node, gpu)
    return Candidate(layout, micro, recompute, count, memory, turn, replicas_s(chosen, shape, layout, per_node, gpu))


def turn_of(options: Options, shape: ModelShape, layout: Layout, per_node: int, gpu: Gpu) -> Turn:
    """Return the turn of one micro-batch, forward and backward, on the slowest stage."""
    batch = micro_batch(options, shape, layout)
    recompute = recomputed(options)
    stages = blocks_per_stage(shape.layers, layout.pipeline, options["pp_partition_method"])

    def flops(blocks: int) -> float:
        """Return the FLOPs of that many blocks and the output layer."""
        return step_flops(dataclasses.replace(shape, layers=blocks), batch.samples, batch.length, *PASSES[recompute])

    output = 2 * flops(1) - flops(2)
    slowest = max(flops(blocks) - (0 if stage == len(stages) - 1 else output) for stage, blocks in enumerate(stages))
    reached = gpu.peak_tflops * 1e12 * _KERNELS * batch.tokens / (batch.tokens + _HALF_AT_TOKENS)
    ring = 2 * (layout.tensor - 1) / layout.tensor
    sums = (_SUMS_RECOMPUTED if recompute == BLOCK else _SUMS) + batch.sequence_parallel * _SUMS_OF_SLICES
    sent = 2 * batch.stream_bytes if layout.pipeline > 1 else 0
    between = gpu.gbs_of_each(layout.world_size <= per_node, per_node) * 1e9
    return Turn(
        compute_s=slowest / layout.tensor / reached,
        tensor_s=max(stages) * sums * batch.whole_stream_bytes * ring / (gpu.within_node_gbs * 1e9),
        stages_s=sent / between,
    )


def replicas_s(options: Options, shape: ModelShape, layout: Layout, per_node: int, gpu: Gpu) -> float:
    """Return the seconds for adding gradients over replicas, in fp32 for bf16, and gathering the updated weights."""
    stages = blocks_per_stage(shape.layers, layout.pipeline, options["pp_partition_method"])
    held = max(parameters_of_ranks(shape, stages, layout.tensor))
    weights = 4 if shape.precision == "fp32" else 2
    gradients = 2 if shape.precision == "fp16" else _FP32
    share = (layout.data - 1) / layout.data
    bandwidth = gpu.gbs_of_each(layout.tensor * layout.data <= per_node, per_node) * 1e9
    return held * share * (2 * gradients + weights) / bandwidth


_SHOWN = 10


def layout_search(
    name: str, slurm: SlurmTable, table: GpuTable, expect: ExpectTable, options: Options, gpus: int
) -> LayoutSearch:
    """Search the layouts of the run's model and batch that fit on `gpus` GPUs.

    Raises UsageError if the model or the GPU is unknown, or if nothing fits: with the GPUs that would.
    """
    shape = model_shape(options)
    if shape is None or not options.global_batch_size or not options.seq_length:
        raise UsageError(
            "--search needs the model and the batch: num_layers, hidden_size, num_attention_heads, seq_length, "
            "vocab_size and global_batch_size under [trainer] and [data]"
        )
    per_node, gpu = slurm.gpus_per_node, gpu_of(table, slurm, shape.precision)
    found = search(options, shape, gpus, per_node, gpu)
    if not found.fitting:
        raise UsageError(_nothing_fits(found.smallest, gpu, gpus))
    own = _own(slurm, options, shape, gpu)
    scale = _scale(own, expect, options, shape)
    chosen = own if own is not None and own.layout.world_size == gpus else None
    return LayoutSearch(
        run=name,
        gpu=SearchedGpu(
            name=gpu.name,
            gpus=gpus,
            gpus_per_node=per_node,
            memory_gb=gpu.memory_gb,
            usable_gb=gpu.memory_gb * USABLE,
            peak_tflops=gpu.peak_tflops,
            within_node_gbs=gpu.within_node_gbs,
            between_nodes_gbs=gpu.between_nodes_gbs,
        ),
        scaled_by=scale,
        own=_fitting(chosen, scale or 1.0, chosen) if chosen is not None else None,
        layouts=[_fitting(one, scale or 1.0, chosen) for one in found.fitting],
    )


def _nothing_fits(smallest: Candidate | None, gpu: Gpu, gpus: int) -> str:
    if smallest is None:
        return (
            f"no layout on {gpus} GPUs divides heads, blocks and batch: change --nodes or --gpus, or global_batch_size "
            "and rampup_batch_size"
        )
    usable = gpu.memory_gb * USABLE
    more = math.ceil(smallest.memory_gb / usable)
    return (
        f"nothing fits {gpus} GPUs of {gpu.memory_gb:g} GB ({usable:g} usable): {smallest.layout} with a micro-batch "
        f"of {smallest.micro_batch} and --recompute {smallest.recompute} needs least, {smallest.memory_gb:.1f} GB. "
        f"Use GPUs of {math.ceil(smallest.memory_gb / USABLE)} GB, or about {more} times as many"
    )


def _own(slurm: SlurmTable, options: Options, shape: ModelShape, gpu: Gpu) -> Candidate | None:
    """Return the run file's own choice, on its own nodes."""
    layout: Layout | None = layout_if_any(options, slurm.nodes * slurm.gpus_per_node)
    micro = options.micro_batch_size
    if layout is None or not micro:
        return None
    return candidate(options, shape, layout, micro, recomputed(options), slurm.gpus_per_node, gpu)


def _scale(own: Candidate | None, expect: ExpectTable, options: Options, shape: ModelShape) -> float | None:
    """Return the ratio of the run's seconds per step, measured or expected, to those of the model for its layout."""
    if own is None:
        return None
    seconds = expect.seconds_per_iteration
    if not seconds and expect.tflops:
        flops = step_flops(shape, options.global_batch_size, options.seq_length, *PASSES[own.recompute])
        seconds = flops / (expect.tflops * 1e12 * own.layout.world_size)
    return seconds / own.step_s if seconds else None


def _fitting(one: Candidate, scale: float, chosen: Candidate | None) -> FittingLayout:
    return FittingLayout(
        tensor=one.layout.tensor,
        pipeline=one.layout.pipeline,
        data=one.layout.data,
        micro_batch_size=one.micro_batch,
        recompute=one.recompute,
        micro_batches=one.micro_batches,
        seconds_per_iteration=one.step_s * scale,
        memory_gb=one.memory_gb,
        bubble=one.bubble,
        communication=one.waiting,
        is_the_run=chosen is not None and (one.layout, one.micro_batch) == (chosen.layout, chosen.micro_batch),
    )


_HEADING = ("", "TP", "PP", "DP", "micro-batch", "recompute", "s/iteration", "GB", "bubble", "communication")


def search_lines(found: LayoutSearch) -> Iterator[str]:
    """Yield the lines for the screen: the assumptions, and the fastest layouts."""
    gpu = found.gpu
    yield f"{found.run}: {len(found.layouts)} layouts fit {gpu.gpus} GPUs of {gpu.memory_gb:g} GB, the fastest first"
    rows = [
        _HEADING,
        *(_row(f"{place}{'*' if one.is_the_run else ' '}", one) for place, one in enumerate(found.layouts[:_SHOWN], 1)),
    ]
    if found.own is not None:
        rows.append(_row("current", found.own))
    yield from (f"  {line}" for line in table_lines(rows, ">"))
    yield ""
    yield (
        f"  {gpu.name}: {gpu.usable_gb:g} GB usable, {gpu.peak_tflops:g} TFLOP/s stated, {gpu.within_node_gbs:g} GB/s "
        f"of each GPU within its node, {gpu.between_nodes_gbs:g} GB/s between nodes ([gpu])"
    )
    yield (
        "  * is the run's layout and micro-batch, with the least recomputation that fits. "
        + (
            "Seconds are estimated from stated speeds only."
            if found.scaled_by is None
            else "Seconds are scaled to the run's speed."
        )
    )


def _row(name: str, one: FittingLayout) -> tuple[str, ...]:
    return (
        name,
        *(str(value) for value in (one.tensor, one.pipeline, one.data, one.micro_batch_size)),
        one.recompute,
        f"{one.seconds_per_iteration:,.4g}",
        f"{one.memory_gb:.1f}",
        f"{one.bubble:.1%}",
        f"{one.communication:.1%}",
    )
