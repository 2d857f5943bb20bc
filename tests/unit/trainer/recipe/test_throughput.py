"""FLOPs, MFU and tokens a second, against what BLOOM printed and against the arithmetic of the published equation."""

from __future__ import annotations

import pytest

from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import parse
from trainer.recipe.sizes import Throughput, peak_tflops_of

BLOOM = """--num-layers 70 --hidden-size 14336 --num-attention-heads 112 --seq-length 2048 --micro-batch-size 2
    --global-batch-size 2048 --train-samples 220_000_000 --lr 6e-5 --vocab-size 250880 --bf16
    --position-embedding-type alibi --embed-layernorm"""
#: As its log has them: seconds of a step, GPUs, samples of a step, and the TFLOPs that it says these are.
SECONDS, GPUS, BATCH, PRINTED = 105.22, 384, 2048, 149.02
#: Of these, by the papers' 6 operations for each parameter and token and 12 L s h for attention; 0.01 % are norms.
MODEL = (6 * 176_247_271_424 + 12 * 70 * 2048 * 14336) * BATCH * 2048 / (SECONDS * GPUS * 1e12)


def bloom(recompute: str = "block", peak_tflops: float | None = None) -> Throughput:
    shape = ModelShape.of(parse(BLOOM.split()), Vocabulary.unpadded(250_880))
    return Throughput(shape, 2048, GPUS, recompute, peak_tflops)


def test_blooms_printed_tflops_are_its_hardware_flops_and_its_model_flops_six_for_each_parameter() -> None:
    speed = bloom().of(BATCH, SECONDS)
    assert f"{speed.hardware_tflops:.2f}" == f"{PRINTED:.2f}"
    assert speed.model_tflops == pytest.approx(MODEL, rel=2e-4)
    assert speed.tokens_per_second == pytest.approx(2048 * 2048 / 105.22 / 384)
    assert speed.mfu is None


def test_mfu_is_what_the_model_flops_are_of_the_peak_however_much_is_recomputed() -> None:
    peak = peak_tflops_of("NVIDIA A100-SXM4-80GB", "bf16")
    assert peak == 312
    recomputed, kept = bloom("block", peak).of(BATCH, SECONDS), bloom("none", peak).of(BATCH, SECONDS)
    assert recomputed.mfu == kept.mfu == pytest.approx(MODEL / 312, rel=2e-4)
    assert kept.hardware_tflops == kept.model_tflops


def test_recomputed_attention_is_done_once_more_and_nothing_else() -> None:
    speed = bloom("attention").of(BATCH, SECONDS)
    scores_and_values = 70 * 2 * (2 * 2048 * 14336)  # of a token in 70 blocks
    again = scores_and_values * BATCH * 2048 / (SECONDS * GPUS * 1e12)
    assert speed.hardware_tflops == pytest.approx(speed.model_tflops + again)
    assert speed.model_tflops == pytest.approx(MODEL, rel=2e-4)


@pytest.mark.parametrize(
    ("device", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756.0),
        ("NVIDIA H200", "fp16", 989.4),
        ("NVIDIA A100-PCIE-40GB", "fp16", 312.0),
        ("NVIDIA A10", "bf16", 125.0),
        ("Tesla V100-SXM2-32GB", "fp16", 125.0),
        ("Tesla V100-PCIE-16GB", "fp16", 112.0),
        ("Tesla V100-SXM2-32GB", "bf16", None),
        ("NVIDIA A100-SXM4-80GB", "fp32", None),
        ("NVIDIA Something New", "bf16", None),
    ],
)
def test_a_devices_peak_is_known_by_its_name_and_precision(device: str, precision: str, peak: float | None) -> None:
    assert peak_tflops_of(device, precision) == peak
