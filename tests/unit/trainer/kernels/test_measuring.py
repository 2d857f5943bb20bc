"""Measuring each way: every family's work is the one that a training has, for every implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.emulator.runner import EmulatedRunner, needs_gxx
from tests.unit.trainer.kernels.test_choice import CPU, options
from trainer.kernels import measuring
from trainer.kernels.__main__ import main
from trainer.kernels.choice import CUDA, Source, choose
from trainer.kernels.times import kept_times
from trainer.kernels.ways import Sizes, work_of

MODELS: dict[str, dict[str, Any]] = {
    "plain": {"hidden_dropout": 0.1},
    "gated": {"swiglu": True, "normalization": "RMSNorm"},
    "half": {"bf16": True},
}


@needs_gxx
@pytest.mark.parametrize(
    "model", ["plain", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("gated", "half"))]
)
def test_every_family_of_a_training_is_timed_by_kernels_and_by_torch(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "source_of", lambda _options, _device: Source(CUDA, EmulatedRunner(), "emulated"))
    said: list[str] = []
    found = measuring.measured(options(**MODELS[model]), CPU, said.append, turn_s=0.0, weights=64)
    needed = {path.family for path in choose(options(**MODELS[model]), CPU).paths} - {"attention"}
    assert {one.family for one in found.families} == needed
    assert {frozenset(one.seconds) for one in found.families} == {frozenset({"CUDA", "torch"})}
    assert said == []


@needs_gxx
@pytest.mark.parametrize("family", ["norms", "activations", "gates", "residuals"])
def test_what_is_timed_gives_the_same_numbers_by_each_way(family: str) -> None:
    from trainer.kernels.choice import every_kernel

    sizes, kernels = Sizes.of(options(hidden_dropout=0.1)), every_kernel(Source(CUDA, EmulatedRunner(), "emulated"))
    attribute = {"gates": "activations", "residuals": "residuals"}.get(family, family)
    work = work_of(family, sizes, CPU, 8)
    buffers = work.make()
    ours, theirs = (work.run(work.operation(one), *buffers) for one in (getattr(kernels, attribute), None))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_sizes_are_those_of_one_rank() -> None:
    split = options(hidden_size=64, num_attention_heads=4, vocab_size=1000)
    whole = Sizes.of(split)
    assert (whole.hidden, whole.width, whole.vocabulary) == (64, 256, 1024)
    from trainer.recipe.options import parse, to_arguments

    words = to_arguments({**{key: value for key, value in split.items() if key in ("hidden_size", "seq_length")}})
    shared = ["--num-layers", "2", "--num-attention-heads", "4", "--vocab-size", "1000", "--micro-batch-size", "1"]
    words += [*shared, "--lr", "1e-4", "--train-iters", "1", "--tensor-model-parallel-size", "2", "--sequence-parallel"]
    half = Sizes.of(parse(words))
    assert (half.hidden, half.width, half.positions) == (64, 128, whole.positions // 2)
    assert half.vocabulary == 512


def test_a_way_that_ends_with_an_error_is_told_of_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("no such kernel")

    monkeypatch.setattr(measuring, "family_kernels", lambda *_: Broken())
    said: list[str] = []
    found = measuring.measured(options(), CPU, said.append, turn_s=0.0, weights=8)
    assert {frozenset(one.seconds) for one in found.families} == {frozenset({"torch"})}
    assert any("norms by " in line and "no such kernel" in line for line in said)


def test_measuring_leaves_a_file_that_trainings_choose_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPSCTL_KERNELS_CACHE", str(tmp_path))
    monkeypatch.setattr(measuring, "_TURN_S", 0.0)
    monkeypatch.setattr(measuring, "_WEIGHTS", {"cpu": 64})
    words = ["--num-layers=1", "--hidden-size=8", "--num-attention-heads=2", "--seq-length=8", "--vocab-size=16"]
    words += ["--micro-batch-size=1", "--lr=1e-4", "--train-iters=1"]
    assert main(["--measure", "--device=cpu", "--", *words]) == 0
    told = capsys.readouterr().out
    assert "norms (LayerNorm)" in told and "us: " in told and str(tmp_path) in told
    assert {one.family for one in kept_times(CPU).families} >= {"norms", "Adam"}
    assert main(["--measure", "--device=cpu", "--json", "--", *words]) == 0
    assert json.loads(capsys.readouterr().out)["times"]["families"][0]["seconds"]["torch"] > 0


def test_a_gpu_that_is_not_there_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["--measure", "--device=cuda"]) == 2
    assert "--device cuda" in capsys.readouterr().err
