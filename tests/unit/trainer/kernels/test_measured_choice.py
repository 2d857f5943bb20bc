"""The choice that a training makes from measured times."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.trainer.kernels.test_choice import CPU, options
from trainer.formats.attempt.kernels import FamilyTimes
from trainer.kernels import choice
from trainer.kernels.attention import CPP
from trainer.kernels.choice import Source, choose
from trainer.kernels.native.libraries import NotBuilt
from trainer.kernels.times import (
    Decision,
    KeptTimes,
    decided,
    device_name,
    times_for,
)
from trainer.recipe.options import OptionsError


def times(family: str = "norms", columns: int = 8, **seconds: float) -> FamilyTimes:
    kind = {"norms": "LayerNorm", "activations": "gelu_tanh"}.get(family, "")
    by_way = {name.replace("cpp", "C++").replace("compiled", "torch.compile"): one for name, one in seconds.items()}
    return FamilyTimes(
        family=family,
        kind=kind,
        precision="fp32",
        columns=columns,
        shape=f"4 x {columns}",
        seconds=by_way,
        measured_at="2026-11-23T10:00:00+00:00",
    )


def measured(*families: FamilyTimes) -> KeptTimes:
    return KeptTimes(device_name(CPU), families)


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    class Function:
        argtypes: Any = None
        restype: Any = None

    class Library:
        def __getattr__(self, _name: str) -> Function:
            return Function()

    monkeypatch.setattr(choice, "source_of", lambda _options, _device: Source(CPP, Library(), "built"))


def path_of(family: str, kept: KeptTimes, **changes: Any) -> tuple[str, str]:
    return next((one.by, one.why) for one in choose(options(**changes), CPU, kept).paths if one.family == family)


def test_the_preferred_way_stays_where_no_other_was_measured_clearly_faster() -> None:
    for torch_s in (2.0, 1.0, 0.99, 1 / 1.03):
        assert decided(["CUDA", "torch"], times(CUDA=1.0, torch=torch_s), "GPU") == Decision("CUDA")


def test_a_way_that_was_measured_slower_by_more_than_three_hundredths_is_not_taken() -> None:
    found = decided(["CUDA", "torch", "apex"], times(CUDA=1.21, torch=1.1, apex=1.0), "GPU")
    assert found.way == "apex" and found.why is not None
    assert all(fact in found.why for fact in ("1.21x", "CUDA", "GPU", "2026-11-23"))


def test_what_is_not_there_is_not_taken_however_fast_it_was() -> None:
    assert decided(["torch"], times(CUDA=0.1, torch=1.0, apex=0.1), "GPU") == Decision("torch")
    assert decided(["CUDA", "torch"], times(torch=1.0), "GPU") == Decision("CUDA")


def test_torch_compile_is_told_of_and_never_taken() -> None:
    found = decided(["CUDA", "torch"], times(CUDA=1.0, torch=2.0, compiled=0.8), "GPU")
    assert found.way == "CUDA" and found.why is None
    assert found.beside is not None
    assert all(fact in found.beside for fact in ("torch.compile", "1.25x", "GPU", "2026-11-23"))


def test_of_several_sizes_the_nearest_counts_and_only_of_that_precision_and_kind() -> None:
    near, far = times(columns=4096, torch=1.0), times(columns=1024, torch=2.0)
    assert times_for([far, near], "norms", "LayerNorm", "fp32", 3000) is near
    assert times_for([far, near], "norms", "LayerNorm", "fp32", 1500) is far
    assert times_for([far, near], "norms", "RMSNorm", "fp32", 4096) is None
    assert times_for([far, near], "norms", "LayerNorm", "bf16", 4096) is None
    assert times_for([far, near], "norms", "LayerNorm", "fp32", 64 * 4096) is None, "what holds in small says nothing"


def test_a_training_takes_what_was_measured_faster_and_says_so() -> None:
    kept = measured(times(cpp=1.21, torch=1.0), times("Adam", cpp=1.0, torch=1.5))
    by, why = path_of("norms", kept)
    assert by == "torch" and all(fact in why for fact in ("1.21x", "C++", kept.device, "2026-11-23"))
    assert path_of("Adam", kept) == (CPP, "built") == path_of("cross entropy", kept)
    chosen = choose(options(), CPU, kept)
    assert chosen.norms is None and chosen.adam is not None


def test_what_torch_does_faster_is_no_constraint_that_is_not_met() -> None:
    kept = measured(times(cpp=2.0, torch=1.0))
    assert choose(options(abort_on_unmet_fused_kernel_constraints=True), CPU, kept).norms is None


def test_times_of_another_device_change_nothing() -> None:
    kept = KeptTimes("NVIDIA H100 80GB HBM3", (times(cpp=2.0, torch=1.0),))
    assert path_of("norms", kept) == (CPP, "built")


def test_megatrons_switches_and_torch_alone_stand_above_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = measured(times("residuals", cpp=1.0, torch=2.0))
    by, why = path_of("residuals", kept, hidden_dropout=0.1, no_bias_dropout_fusion=True)
    assert (by, why) == ("torch", "--no-bias-dropout-fusion")
    monkeypatch.setattr(choice, "source_of", lambda _options, _device: Source("torch", None, "--kernels torch"))
    assert path_of("norms", measured(times(cpp=1.0, torch=2.0)), kernels="torch") == ("torch", "--kernels torch")


def test_what_nobody_has_built_is_torchs_whatever_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "source_of", lambda _options, _device: Source(CPP, None, NotBuilt("nobody").why))
    kept = measured(times(cpp=1.0, torch=2.0))
    assert path_of("norms", kept) == ("torch", "nobody")
    with pytest.raises(OptionsError, match="norms: nobody"):
        choose(options(abort_on_unmet_fused_kernel_constraints=True), CPU, kept)


def test_attention_is_not_chosen_by_it() -> None:
    chosen = choose(options(), torch.device("cpu"), measured(times("attention", cpp=9.0, torch=1.0)))
    assert chosen.attention is not None
