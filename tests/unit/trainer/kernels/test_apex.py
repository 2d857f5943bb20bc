"""NVIDIA's apex: used where our kernels are not built, told from the other project of that name.

There is no GPU for the real one: a stand-in has its modules, and computes by torch what their functions say.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.unit.trainer.kernels.test_choice import CPU, options
from trainer.kernels import choice
from trainer.kernels.adam import AdamBuffers, AdamSettings
from trainer.kernels.apex import ApexAdam, ApexMissing, apex_kernels, apex_norms
from trainer.kernels.choice import CUDA, Source, choose
from trainer.kernels.normalization import NormFunction, added_and_normalized, normalized

NORMS = """
from torch.nn.functional import layer_norm, rms_norm
def fused_layer_norm_affine(input, weight, bias, normalized_shape, eps=1e-6, memory_efficient=False):
    return layer_norm(input, normalized_shape, weight, bias, eps)
def fused_rms_norm_affine(input, weight, normalized_shape, eps=1e-6, memory_efficient=False):
    return rms_norm(input, normalized_shape, weight, eps)
"""
APPLIER = """
def multi_tensor_applier(op, overflow, lists, *args):
    assert overflow.dtype.is_floating_point is False
    return op(2048 * 32, overflow, lists, *args)
"""
AMP_C = """
import torch
def multi_tensor_adam(chunk, overflow, lists, lr, beta1, beta2, epsilon, step, mode, bias_correction, weight_decay):
    assert mode == 1 and bias_correction
    for gradient, weight, first, second in zip(*lists):
        first.mul_(beta1).add_(gradient, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        update = (first / (1 - beta1**step)) / ((second / (1 - beta2**step)).sqrt() + epsilon)
        weight.sub_(lr * (update + weight_decay * weight))
def multi_tensor_l2norm(chunk, overflow, lists, per_tensor):
    return torch.stack([one.float().norm() for one in lists[0]]).norm().view(1), None
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder at the start of the path. Imports from it are removed after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("apex", "amp_C", "fused_layer_norm_cuda"):
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def nvidias(install: Path) -> Path:
    files = {
        "apex/__init__.py": "",
        "apex/normalization/__init__.py": "",
        "apex/normalization/fused_layer_norm.py": NORMS,
        "apex/multi_tensor_apply/__init__.py": APPLIER,
        "fused_layer_norm_cuda.py": "",
        "amp_C.py": AMP_C,
    }
    for name, text in files.items():
        (install / name).parent.mkdir(parents=True, exist_ok=True)
        (install / name).write_text(text)
    importlib.invalidate_caches()
    return install


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "source_of", lambda _options, _device: Source(CUDA, None, "not built"))


@pytest.mark.usefixtures("no_kernels", "nvidias")
def test_it_computes_norms_and_adam_where_our_kernels_are_not_built() -> None:
    chosen = choose(options(), CPU)
    assert isinstance(chosen.norms, NormFunction) and isinstance(chosen.adam, ApexAdam)
    by = {path.family: path.by for path in chosen.paths}
    assert by["norms"] == by["Adam"] == "apex" and by["cross entropy"] == "torch"
    assert {path.why for path in chosen.paths if path.by == "apex"} == {"not built"}


@pytest.mark.usefixtures("nvidias")
def test_it_is_not_imported_where_our_kernels_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "source_of", lambda _options, _device: Source(CUDA, object(), "built for 9.0"))
    chosen = choose(options(), CPU)
    assert {path.by for path in chosen.paths if path.family in ("norms", "Adam")} == {"CUDA"}
    assert "apex" not in sys.modules


@pytest.mark.usefixtures("no_kernels")
def test_the_other_project_of_that_name_is_told_apart(install: Path) -> None:
    (install / "apex").mkdir()
    (install / "apex" / "__init__.py").write_text("raise ImportError('No module named pyramid')\n")
    importlib.invalidate_caches()
    of_norms = next(path for path in choose(options(), CPU).paths if path.family == "norms")
    assert of_norms.by == "torch" and "not built" in of_norms.why and "PyPI" in of_norms.why


def test_without_its_extensions_it_computes_nothing(nvidias: Path) -> None:
    (nvidias / "amp_C.py").unlink()
    importlib.invalidate_caches()
    assert isinstance(apex_kernels("norms"), NormFunction)
    with pytest.raises(ApexMissing, match="amp_C"):
        apex_kernels("adam")


def test_one_that_does_not_load_is_a_reason_and_no_end(nvidias: Path) -> None:
    (nvidias / "apex" / "normalization" / "fused_layer_norm.py").write_text("raise ImportError('undefined symbol')\n")
    with pytest.raises(ApexMissing, match=r"apex .*undefined symbol"):
        apex_kernels("norms")


@pytest.mark.usefixtures("nvidias")
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_its_norms_stand_where_torchs_do_with_the_same_numbers(rms: bool, has_bias: bool) -> None:
    norms = apex_norms()
    x, residual = (torch.randn(2, 3, 8, dtype=torch.float64).requires_grad_() for _ in range(2))
    weight = torch.randn(8, dtype=torch.float64).requires_grad_()
    bias = torch.randn(8, dtype=torch.float64).requires_grad_() if has_bias and not rms else None
    assert torch.equal(*(normalized(x, weight, bias, 1e-5, rms, one) for one in (norms, None)))
    ours, theirs = (added_and_normalized(x, residual, weight, bias, 1e-5, rms, one) for one in (norms, None))
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.usefixtures("nvidias")
def test_its_adam_is_torchs_with_the_scale_and_the_rounded_weight() -> None:
    adam, weights = ApexAdam(), [torch.randn(5), torch.randn(7)]
    gradients = [torch.randn(5).bfloat16(), torch.randn(7)]
    theirs = [nn.Parameter(one.clone()) for one in weights]
    optimizer = torch.optim.AdamW(theirs, lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    halves = [torch.empty(5, dtype=torch.bfloat16), None]
    moments = [(torch.zeros_like(one), torch.zeros_like(one)) for one in weights]
    for step in (1, 2):
        buffers = [
            AdamBuffers(weight, gradient, *of_weight, half)
            for weight, gradient, of_weight, half in zip(weights, gradients, moments, halves, strict=True)
        ]
        adam.step(buffers, AdamSettings(0.1, 0.9, 0.95, 1e-8, 0.1, step), 0.5)
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.float() * 0.5
        optimizer.step()
    for ours, other in zip(weights, theirs, strict=True):
        assert torch.allclose(ours, other, atol=1e-6)
    assert halves[0] is not None and torch.equal(halves[0], weights[0].bfloat16())
    squares = sum(float(one.double().square().sum()) for one in gradients)
    assert adam.squares(gradients).dtype == torch.float64
    assert float(adam.squares(gradients)) == pytest.approx(squares, rel=1e-5)
