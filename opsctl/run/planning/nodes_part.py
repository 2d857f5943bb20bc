"""On how many nodes a batch that grows can be trained, from which sample on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from opsctl.run.planning.plan import FittingNodes, NodesAlongTheRamp
from opsctl.run.planning.section import Section
from trainer.recipe.schedule import BatchRamp


def nodes_section(per_node: int, options: Mapping[str, Any], ramp: BatchRamp) -> Section | None:
    """From each sample on at which more node counts fit, those that do: every batch still to come divides by them.

    None without a ramp-up, where the micro-batch is not given, and where none ever fits.
    """
    micro = options["micro_batch_size"]
    model = options["tensor_model_parallel_size"] * options["pipeline_model_parallel_size"]
    if not ramp.is_ramp or not micro:
        return None
    stages = [
        FittingNodes(
            first_sample=stage.first_sample,
            batch_size=stage.batch_size,
            nodes=_node_counts(common // micro if common % micro == 0 else 0, model, per_node),
        )
        for stage, common in zip(ramp.stages(), _common_divisors(ramp), strict=True)
    ]
    found = [stages[0], *(now for before, now in pairwise(stages) if now.nodes != before.nodes)]
    found = [one for one in found if one.nodes]
    if not found:
        return None
    rows = [("from sample", "batch", "nodes that fit from there on")]
    rows += [(f"{one.first_sample:,}", f"{one.batch_size:,}", " ".join(map(str, one.nodes))) for one in found]
    return Section("ramp_nodes", "Nodes along the ramp-up", NodesAlongTheRamp(stages=found), (), tuple(rows))


def _common_divisors(ramp: BatchRamp) -> list[int]:
    """Of each stage's batch and all after it, the greatest common divisor."""
    found: list[int] = []
    for stage in reversed(ramp.stages()):
        found.append(math.gcd(stage.batch_size, found[-1] if found else 0))
    return found[::-1]


def _node_counts(replicas: int, model: int, per_node: int) -> list[int]:
    """Node counts whose GPUs are a number of replicas, of `model` ranks each, that divides `replicas`."""
    fitting = [count for count in range(1, replicas + 1) if replicas % count == 0]
    return [count * model // per_node for count in fitting if count * model % per_node == 0]
