"""How the ranks and the blocks are divided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opsctl.run.planning.plan import PipelinePartition, PlannedLayout, ProcessGroups
from opsctl.run.planning.section import Section
from trainer.recipe.layout import Layout, blocks_per_stage

#: Beyond this nobody reads lists of ranks.
MOST_RANKS_LISTED = 65_536


def layout_sections(per_node: int, options: Mapping[str, Any], layout: Layout) -> Iterator[Section]:
    """The layout on the screen and in JSON; every rank of every process group in JSON alone."""
    nodes = layout.world_size // per_node
    groups: dict[str, list[list[int]]] = {}
    if layout.world_size <= MOST_RANKS_LISTED:
        groups = {
            "tensor_groups": layout.tensor_groups(),
            "pipeline_groups": layout.pipeline_groups(),
            "data_groups": layout.data_groups(),
            "model_parallel_groups": layout.model_groups(),
        }
    replica = layout.tensor * layout.pipeline
    rows = [
        ("ranks", f"{layout.world_size} = {nodes} nodes x {per_node} GPUs"),
        (
            "tensor x pipeline x data",
            f"{layout.tensor} x {layout.pipeline} x {layout.data}: "
            f"{layout.data} replica{'s' * (layout.data > 1)} of {replica} GPU{'s' * (replica > 1)}",
        ),
    ]
    stages = stages_of(options, layout)
    partition = None
    if stages:
        method = options["pp_partition_method"]
        partition = PipelinePartition(method=method, blocks_per_stage=stages)
        rows.append(("blocks per stage", f"{_stage_text(stages)} ({method})"))
    for key, found in groups.items():
        rows.append((key.removesuffix("_groups").replace("_", " ") + " groups", _groups_text(found)))
    values = PlannedLayout(
        nodes=nodes,
        gpus_per_node=per_node,
        world_size=layout.world_size,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        data=layout.data,
        pipeline_partition=partition,
    )
    yield Section("layout", "Layout", values, tuple(rows))
    yield Section("process_groups", "", ProcessGroups(**groups))


def stages_of(options: Mapping[str, Any], layout: Layout) -> list[int] | None:
    """Blocks of each pipeline stage; None where they do not divide."""
    if options["num_layers"] is None:
        return None
    try:
        return blocks_per_stage(options["num_layers"], layout.pipeline, options["pp_partition_method"])
    except ValueError:
        return None


def _stage_text(stages: list[int]) -> str:
    if len(set(stages)) == 1 and len(stages) > 4:
        return f"{stages[0]} in each of {len(stages)}"
    return " ".join(str(blocks) for blocks in stages)


def _groups_text(groups: list[list[int]]) -> str:
    def members(group: list[int]) -> str:
        if len(group) <= 5:
            return " ".join(str(rank) for rank in group)
        return f"{' '.join(str(rank) for rank in group[:3])} ... {group[-1]}"

    shown = ", ".join(members(group) for group in groups[:2])
    return f"{len(groups)} of {len(groups[0])}: {shown}{', ...' if len(groups) > 2 else ''}"
