"""Find layouts with which a run can continue on fewer nodes, with the same global batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from opsctl.core.errors import UsageError
from opsctl.run.config.schema import RunFile
from opsctl.run.planning.gpus import Gpu, gpu_of
from opsctl.run.planning.search import USABLE, candidate, search
from opsctl.run.planning.sizes import model_shape
from trainer.formats.checkpoint.starting import parse_to_start
from trainer.recipe.layout import Layout
from trainer.recipe.model_options import ATTENTION, BLOCK, NONE, recomputed
from trainer.recipe.options import Options, OptionsError, to_arguments

#: Layouts of the search that are tried on one number of nodes, fastest first.
_TRIED = 20
_LESS_MEMORY_LAST = (NONE, ATTENTION, BLOCK)


@dataclass(frozen=True)
class SmallerLayout:
    """A layout on fewer nodes."""

    nodes: int
    layout: Layout
    micro_batch: int
    arguments: tuple[str, ...]  # of the trainer, after those of the run

    def __str__(self) -> str:
        """Return the layout as text."""
        return f"{self.layout}, micro-batch {self.micro_batch}"


def smaller_layouts(
    file: RunFile, arguments: Sequence[str], options: Options, below: int | None = None
) -> Iterator[SmallerLayout]:
    """Yield one layout for each number of nodes where there is one, from `below` - 1 down to `[slurm] min_nodes`.

    arguments: the trainer's. options: what they result in on all nodes. The run's TP, PP and micro-batch are kept where
    a smaller DP is enough; else the layout is the fastest one that the search finds. below: the run's nodes if None.
    """
    if file.program is None and file.slurm.min_nodes:
        for nodes in range((below or file.slurm.nodes) - 1, file.slurm.min_nodes - 1, -1):
            found = _on(nodes, file, arguments, options)
            if found is not None:
                yield found


def fewer_nodes_problem(file: RunFile, arguments: Sequence[str], options: Options) -> str | None:
    """Return why the run cannot continue on fewer nodes as `[slurm] min_nodes` asks; None if it can or need not."""
    least, nodes = file.slurm.min_nodes, file.slurm.nodes
    if not least or file.program is not None:
        return None
    if least >= nodes:
        return f"[slurm] min_nodes must be below nodes = {nodes}, got {least}"
    if next(smaller_layouts(file, arguments, options), None) is None:
        return (
            f"[slurm] min_nodes = {least}: no layout on {least} or more of {nodes} nodes keeps the global batch of "
            f"{options.global_batch_size}; choose a smaller min_nodes, or a batch with more divisors"
        )
    return None


def _on(nodes: int, file: RunFile, arguments: Sequence[str], options: Options) -> SmallerLayout | None:
    ranks = nodes * file.slurm.gpus_per_node
    batch = to_arguments({"global_batch_size": options.global_batch_size})
    for words in _choices(ranks, file, options):
        try:
            chosen = parse_to_start([*arguments, *batch, *words], ranks)
            layout = Layout.of(chosen, ranks)
        except (OptionsError, ValueError):
            continue
        return SmallerLayout(nodes, layout, chosen.micro_batch_size, (*batch, *words))
    return None


def _choices(ranks: int, file: RunFile, options: Options) -> Iterator[list[str]]:
    """Yield the arguments of the layouts to try: first none, which is the smaller DP."""
    shape, per_node = model_shape(options), file.slurm.gpus_per_node
    if shape is None:
        yield []
        return
    try:
        gpu = gpu_of(file.gpu, file.slurm, shape.precision)
    except UsageError:  # then only the order of the layouts is estimated, not whether they fit
        gpu = Gpu("unknown", math.inf, 1.0, 1.0, 1.0)
    own = recomputed(options)
    try:
        now = Layout.of(options, ranks)
    except ValueError:
        now = None
    if now is not None:
        costs = candidate(options, shape, now, options.micro_batch_size, own, per_node, gpu)
        if costs is None or costs.memory_gb <= gpu.memory_gb * USABLE:
            yield []
    for one in islice(search(options, shape, ranks, per_node, gpu).fitting, _TRIED):
        more = _LESS_MEMORY_LAST.index(one.recompute) > _LESS_MEMORY_LAST.index(own)
        yield to_arguments(
            {
                "tensor_model_parallel_size": one.layout.tensor,
                "pipeline_model_parallel_size": one.layout.pipeline,
                "micro_batch_size": one.micro_batch,
                **({"recompute": one.recompute} if more else {}),
            }
        )
