from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.kernels import choice
from trainer.kernels.__main__ import main
from trainer.kernels.choice import CUDA, FAMILIES, Operations, Path, Source, choose, kernel_lines
from trainer.kernels.native.libraries import NotBuilt
from trainer.recipe.options import Options, OptionsError, parse, to_arguments

CPU = torch.device("cpu")
NOT_BUILT = "not built here"


def options(**changes: Any) -> Options:
    model = {"num_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "seq_length": 8, "vocab_size": 16}
    training = {"micro_batch_size": 1, "lr": 1e-4, "train_iters": 1, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    return parse(to_arguments({**model, **training, **changes}), world_size=1)


@pytest.fixture
def nothing_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "operations", lambda: NotBuilt(NOT_BUILT))


@pytest.mark.usefixtures("nothing_built")
def test_what_nobody_has_built_is_computed_by_torch_and_the_reason_is_told() -> None:
    chosen = choose(options(), CPU)
    assert {vars(chosen)[family.attribute] for family in FAMILIES} == {None}
    assert {(path.by, path.why) for path in chosen.paths} == {("torch", NOT_BUILT)}


@pytest.mark.usefixtures("nothing_built")
def test_constraints_that_must_be_met_and_are_not_refuse_the_training_with_each_family_and_its_reason() -> None:
    with pytest.raises(OptionsError, match=f"norms: {NOT_BUILT}; activations: {NOT_BUILT}"):
        choose(options(abort_on_unmet_fused_kernel_constraints=True), CPU)


def test_torch_alone_is_what_may_be_asked_for() -> None:
    chosen = choose(options(kernels="torch"), CPU)
    assert chosen == Operations(paths=chosen.paths)
    assert {(path.by, path.why) for path in chosen.paths} == {("torch", "--kernels torch")}


def test_torch_alone_and_kernels_that_must_be_there_exclude_each_other() -> None:
    with pytest.raises(OptionsError, match=r"--abort-on-unmet-fused-kernel-constraints .*--kernels torch"):
        choose(options(kernels="torch", abort_on_unmet_fused_kernel_constraints=True), CPU)


def test_attention_that_is_named_and_torch_alone_exclude_each_other() -> None:
    with pytest.raises(OptionsError, match=r"--attention C\+\+ .*--kernels torch"):
        choose(options(kernels="torch", attention="C++"), CPU)


def test_fp16_on_a_cpu_is_torchs_whatever_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "operations", lambda: object())
    chosen = choose(options(fp16=True), CPU)
    assert chosen.norms is None and any("float16" in path.why for path in chosen.paths)


@pytest.mark.parametrize(
    ("changes", "family", "why"),
    [
        ({"swiglu": True, "no_bias_swiglu_fusion": True}, "gates", "--no-bias-swiglu-fusion"),
        ({"hidden_dropout": 0.1, "no_bias_dropout_fusion": True}, "residuals", "--no-bias-dropout-fusion"),
    ],
)
def test_megatrons_switches_leave_a_family_to_torch(changes: dict[str, Any], family: str, why: str) -> None:
    assert Path(family, "torch", why) in choose(options(**changes), CPU).paths


def test_families_that_a_training_does_not_compute_are_not_told_of() -> None:
    plain = {path.family for path in choose(options(optimizer="sgd", disable_bias_linear=True), CPU).paths}
    assert plain.isdisjoint({"gates", "residuals", "softmax", "Adam"})
    assert "activations" not in {path.family for path in choose(options(swiglu=True), CPU).paths}


def test_the_log_says_in_a_line_each_who_computes_what_and_why() -> None:
    paths = (Path("norms", "C++", "built"), Path("softmax", "torch", "no"), Path("Adam", "C++", "built"))
    assert kernel_lines(Operations(paths=paths)) == [
        "kernels: C++ computes norms, Adam (built)",
        "kernels: torch computes softmax (no)",
    ]


@pytest.mark.usefixtures("nothing_built")
def test_why_says_it_for_any_training_without_one_being_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--why"]) == 0
    assert ["norms", "torch", NOT_BUILT] in [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert main(["--why", "--", *to_arguments(dict(options(swiglu=True)))]) == 0
    assert "gates" in capsys.readouterr().out


def test_why_refuses_options_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--why", "--", "--num-layers=many"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("opsctl: ") and said.count("\n") == 1


def test_sizes_that_the_cuda_kernels_do_not_take_are_left_to_torch_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice, "source_of", lambda _options, _device: Source(CUDA, object(), "built for 9.0"))
    chosen = choose(options(hidden_size=40_960, num_attention_heads=320), CPU)
    assert chosen.norms is None and chosen.cross_entropy is not None
    (why,) = [path.why for path in chosen.paths if (path.family, path.by) == ("norms", "torch")]
    assert "40960" in why and "32768" in why
    assert choose(options(hidden_size=32_768, num_attention_heads=256), CPU).norms is not None


def test_a_gpu_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["--why", "--device=cuda"]) == 2
    assert "--device cuda" in capsys.readouterr().err
