"""What a search of layouts says, on the screen and in JSON, and the refusal where nothing fits. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from opsctl.core.errors import UsageError
from opsctl.run.config.schema import ExpectTable, GpuTable, SlurmTable
from opsctl.run.planning.gpus import Gpu, gpu_of
from opsctl.run.planning.model_part import model_shape
from opsctl.run.planning.search import USABLE, Candidate, candidate, search
from opsctl.run.planning.search_values import FittingLayout, LayoutSearch, SearchedGpu
from trainer.recipe.layout import Layout, layout_if_any
from trainer.recipe.model_options import recomputed
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options
from trainer.recipe.sizes import PASSES, step_flops

_SHOWN = 10


def layout_search(
    name: str, slurm: SlurmTable, table: GpuTable, expect: ExpectTable, options: Options, gpus: int
) -> LayoutSearch:
    """All layouts of the run's model and batch on so many GPUs that fit.

    Raises UsageError where the model or the GPU is not known, and where nothing fits: with what would.
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
        f"of {smallest.micro_batch} and --recompute {smallest.recompute} takes least, {smallest.memory_gb:.1f} GB; "
        f"GPUs of {math.ceil(smallest.memory_gb / USABLE)} GB would do, or about {more} times as many"
    )


def _own(slurm: SlurmTable, options: Options, shape: ModelShape, gpu: Gpu) -> Candidate | None:
    """What the run file has itself, on its own nodes."""
    layout: Layout | None = layout_if_any(options, slurm.nodes * slurm.gpus_per_node)
    micro = options.micro_batch_size
    if layout is None or not micro:
        return None
    return candidate(options, shape, layout, micro, recomputed(options), slurm.gpus_per_node, gpu)


def _scale(own: Candidate | None, expect: ExpectTable, options: Options, shape: ModelShape) -> float | None:
    """The run's own seconds of a step, measured or expected, over those of the model for the run's own layout."""
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
    """The screen: what was reckoned with, and the fastest."""
    gpu = found.gpu
    yield f"{found.run}: {len(found.layouts)} layouts fit {gpu.gpus} GPUs of {gpu.memory_gb:g} GB, the fastest first"
    rows = [_HEADING, *(_row(_place(place, one), one) for place, one in enumerate(found.layouts[:_SHOWN], 1))]
    if found.own is not None:
        rows.append(_row("as it is", found.own))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADING))]
    yield from ("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    yield ""
    yield (
        f"  {gpu.name}: {gpu.usable_gb:g} GB usable, {gpu.peak_tflops:g} TFLOP/s stated, {gpu.within_node_gbs:g} GB/s "
        f"of each GPU within its node, {gpu.between_nodes_gbs:g} GB/s between nodes ([gpu])"
    )
    yield (
        "  * is the run's own layout and micro-batch, with as little recomputed as fits. "
        + (
            "Seconds are by stated speeds alone."
            if found.scaled_by is None
            else "Seconds are scaled to the run's own speed."
        )
    )


def _place(place: int, one: FittingLayout) -> str:
    return f"{place}{'*' if one.is_the_run else ' '}"


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
