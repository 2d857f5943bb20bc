from __future__ import annotations

import pytest

from trainer.launcher.energy.allocation import allocation


@pytest.mark.parametrize(
    ("environment", "share"),
    [
        ({}, 1.0),
        ({"SLURM_CPUS_ON_NODE": "16"}, 0.25),
        ({"SLURM_CPUS_ON_NODE": "64"}, 1.0),
        ({"SLURM_CPUS_ON_NODE": "32"}, 1.0),  # as many as there are cores: Slurm does not count hyper-threads here
        ({"SLURM_CPUS_ON_NODE": "96"}, 1.0),
        ({"SLURM_CPUS_ON_NODE": "0"}, 1.0),
        ({"SLURM_CPUS_ON_NODE": "many"}, 1.0),
        ({"SLURM_NODEID": "0", "SLURM_JOB_CPUS_PER_NODE": "16(x2),48", "SLURM_CPUS_ON_NODE": "4"}, 0.25),
        ({"SLURM_NODEID": "2", "SLURM_JOB_CPUS_PER_NODE": "16(x2),48", "SLURM_CPUS_ON_NODE": "4"}, 0.75),
        ({"SLURM_NODEID": "3", "SLURM_JOB_CPUS_PER_NODE": "16(x2),48", "SLURM_CPUS_ON_NODE": "8"}, 0.125),
    ],
)
def test_the_share_of_a_node_is_that_of_its_cpus(environment: dict[str, str], share: float) -> None:
    assert allocation(environment, "n1", logical=64, cores=32, allowed=64).share == share


def test_what_the_kernel_allows_counts_where_it_is_more_than_slurms_cores_say() -> None:
    environment = {"SLURM_CPUS_ON_NODE": "8"}  # cores, with two threads each
    assert allocation(environment, "n1", logical=64, cores=32, allowed=16).share == 0.25


@pytest.mark.parametrize(
    ("environment", "devices"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ("0", "1")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5a, GPU-6b"}, ("GPU-5a", "GPU-6b")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ()),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
        ({"ROCR_VISIBLE_DEVICES": "3"}, ("3",)),
        ({"SLURM_JOB_GPUS": "4,5,6,7"}, ("4", "5", "6", "7")),
        ({"SLURM_STEP_GPUS": "4", "SLURM_JOB_GPUS": "4,5"}, ("4",)),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "64"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "8"}, ()),
    ],
)
def test_only_gpus_of_the_allocation_are_counted(environment: dict[str, str], devices: tuple[str, ...] | None) -> None:
    assert allocation(environment, "n1", logical=64, cores=64, allowed=64).devices == devices


def test_an_array_task_is_named_as_squeue_shows_it() -> None:
    environment = {"SLURM_JOB_ID": "812", "SLURM_ARRAY_JOB_ID": "810", "SLURM_ARRAY_TASK_ID": "2"}
    assert allocation(environment, "n1", 1, 1, 1).job == "810_2"
    assert allocation({"SLURM_JOB_ID": "812", "SLURMD_NODENAME": "x7"}, "n1", 1, 1, 1).host == "x7"
    assert allocation({"SLURM_JOB_ID": "812"}, "n1", 1, 1, 1).job == "812"
