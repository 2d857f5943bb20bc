"""The known facts of a run's GPU, by its name in [slurm]."""

from __future__ import annotations

import pytest

from opsctl.core.errors import UsageError
from opsctl.run.config.schema import GpuTable, SlurmTable
from opsctl.run.planning.gpus import KNOWN, assumed_speed, gpu_of


def asks(name: str, per_node: int = 8) -> SlurmTable:
    return SlurmTable(nodes=1, gpus_per_node=per_node, time="1:00:00", gpu_type=name)


@pytest.mark.parametrize(
    ("gres", "name", "memory_gb", "peak", "between"),
    [
        ("a100", "A100", 80, 312, 200),
        ("gpu:a100:4", "A100", 80, 312, 200),
        ("nvidia_a100-sxm4-40gb", "A100", 40, 312, 200),
        ("NVIDIA-A100-PCIE-40GB", "A100", 40, 312, 200),
        ("nvidia_h100_80gb_hbm3", "H100", 80, 989.4, 400),
        ("h100_nvl", "H100 NVL", 94, 835, 400),
        ("nvidia_h100_pcie", "H100 PCIe", 80, 756, 400),
        ("gpu:h200:8", "H200", 141, 989.4, 400),
        ("nvidia_gh200_480gb", "GH200", 96, 989.4, 200),
        ("gh200_144gb_hbm3e", "GH200", 144, 989.4, 200),
        ("nvidia_b200", "B200", 180, 2250, 400),
        ("gb200", "GB200", 186, 2500, 400),
        ("mi300x", "MI300X", 192, 1307.4, 400),
        ("amd_instinct_mi300x_oam", "MI300X", 192, 1307.4, 400),
        ("nvidia_l40s", "L40S", 48, 362, 100),
    ],
)
def test_names_as_slurm_writes_them_are_known(
    gres: str, name: str, memory_gb: float, peak: float, between: float
) -> None:
    found = gpu_of(GpuTable(), asks(gres), "bf16")
    assert (found.name, found.memory_gb, found.peak_tflops, found.between_nodes_gbs) == (name, memory_gb, peak, between)


def test_a_node_of_four_has_the_adapters_of_four() -> None:
    assert gpu_of(GpuTable(), asks("gb200", 4), "bf16").between_nodes_gbs == 200


@pytest.mark.parametrize("gres", ["nvidia_a100-pcie-40gb", "nvidia_a100_80gb_pcie"])
def test_an_a100_on_pcie_has_no_nvlink_to_all_gpus_of_its_node(gres: str) -> None:
    assert gpu_of(GpuTable(), asks(gres), "bf16").within_node_gbs <= 32
    assert gpu_of(GpuTable(), asks("nvidia_a100-sxm4-80gb"), "bf16").within_node_gbs > 200


def test_what_the_run_file_gives_counts_before_what_is_known() -> None:
    given = GpuTable(memory_gb=64.0, between_nodes_gbs=25.0)
    found = gpu_of(given, asks("a100"), "bf16")
    assert (found.memory_gb, found.between_nodes_gbs, found.peak_tflops) == (64, 25, 312)


@pytest.mark.parametrize("gres", ["nvidia_h100_80gb_hbm3_1g.10gb", "a100_3g.20gb", "k80", "rtx_a1000", "mi300a"])
def test_a_part_of_a_gpu_and_another_gpu_are_not_taken_for_a_whole_known_one(gres: str) -> None:
    with pytest.raises(UsageError, match=r"\[gpu\]"):
        gpu_of(GpuTable(), asks(gres), "bf16")


def test_every_known_gpu_has_a_source_and_an_assumed_share_of_its_peak() -> None:
    for one in KNOWN:
        assert one.source and 0.2 <= one.mfu <= 0.5
        assert one.within_node_gbs < one.link_gbs


def test_a_speed_is_assumed_from_the_peak_and_said_with_its_gpu() -> None:
    found = assumed_speed(GpuTable(), asks("h100"), "bf16")
    assert found is not None and (found.gpu, found.mfu) == ("H100", 0.4)
    assert found.tflops == pytest.approx(0.4 * 989.4)
    own = assumed_speed(GpuTable(peak_tflops=100.0), SlurmTable(nodes=1, gpus_per_node=8, time="1:00:00"), "bf16")
    assert own is not None and own.tflops == pytest.approx(40)
    assert assumed_speed(GpuTable(), asks("k80"), "bf16") is None
    assert assumed_speed(GpuTable(), asks("h100"), "fp32") is None
