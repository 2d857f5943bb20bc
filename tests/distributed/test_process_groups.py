"""The process groups that `opsctl plan` prints are those that a training of that layout works with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opsctl.cli.plan import command
from tests.distributed.pool import Pool
from tests.unit.run.config.run_files import VALID, written

pytestmark = pytest.mark.distributed

LAYOUT = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}


def planned_groups(folder: Path) -> dict[str, list[list[int]]]:
    """`process_groups` of the plan of 4 nodes x 2 GPUs, TP 2 x PP 2 x DP 2."""
    result = CliRunner().invoke(command, ["--json", str(written(folder, VALID))])
    plan = json.loads(result.stdout)["plan"]
    assert (plan["layout"]["tensor"], plan["layout"]["pipeline"], plan["layout"]["data"]) == (2, 2, 2)
    groups: dict[str, list[list[int]]] = plan["process_groups"]
    return groups


def places_and_groups() -> dict[str, Any]:
    """Of one rank: what each group's members send each other, its place, and the same as DeepSpeed's engine has it."""
    import torch.distributed as dist

    from tests.distributed.tiny_training import tiny_engine

    _, parallel, engine = tiny_engine(**LAYOUT)

    def members(group: Any) -> list[int]:
        ranks = [-1] * dist.get_world_size(group)
        dist.all_gather_object(ranks, dist.get_rank(), group=group)
        return ranks

    grid, place = engine.grid, parallel.topology.get_coord(parallel.rank)
    return {
        "trainer": {
            "tensor_groups": members(parallel.tensor_group),
            "pipeline_groups": members(parallel.pipeline_group),
            "data_groups": members(parallel.data_group),
        },
        "engine": {
            "tensor_groups": members(grid.slice_proc_group),
            "pipeline_groups": members(grid.pp_proc_group),
            "data_groups": members(grid.dp_proc_group),
            "model_parallel_groups": members(grid.ds_model_proc_group),
        },
        "place": (parallel.tensor_rank, parallel.data_rank, parallel.pipeline_rank),
        "topology": (place.model, place.data, place.pipe),
    }


def test_planned_groups_are_the_trainers_and_deepspeeds(pool: Pool, tmp_path: Path) -> None:
    planned = planned_groups(tmp_path)
    ranks = pool.run(8, places_and_groups)
    for rank, found in enumerate(ranks):
        own = {kind: next(group for group in groups if rank in group) for kind, groups in planned.items()}
        assert found["engine"] == own
        assert found["trainer"] == {kind: own[kind] for kind in found["trainer"]}
        assert found["place"] == found["topology"]
    assert len({found["place"] for found in ranks}) == 8


def minutes_of_all_groups() -> set[float]:
    """Of one rank: how long each group that the engine and the trainer have waits."""
    import torch
    import torch.distributed.distributed_c10d as c10d

    from tests.distributed.tiny_training import tiny_engine

    tiny_engine(**LAYOUT, distributed_timeout_minutes=7)
    groups = [group for group in c10d._world.pg_map if isinstance(group, c10d.ProcessGroup)]
    cpu = torch.device("cpu")
    return {group._get_backend(cpu).options._timeout.total_seconds() / 60 for group in groups}


def test_every_group_waits_as_long_as_the_option_says_deepspeeds_own_too(pool: Pool) -> None:
    assert pool.run(8, minutes_of_all_groups) == [{7.0}] * 8
