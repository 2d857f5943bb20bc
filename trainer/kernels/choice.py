"""The choice of a training's kernels: by its options, by the built kernels, and by its device.

Nothing is compiled here: `opsctl kernels build` does that before jobs. What is built is used: on every measured device
it is faster than torch. On a GPU without it, NVIDIA's apex computes norms and Adam if it is installed, and torch
everything else. `Operations.paths` has the implementation of each family and the reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trainer.core.dtypes import DTYPES
from trainer.kernels.activation import ActivationKernels
from trainer.kernels.adam import AdamKernels
from trainer.kernels.apex import APEX_COMPUTES, NOT_INSTALLED, ApexMissing, apex_kernels
from trainer.kernels.attention import (
    CPP,
    SOFTMAX,
    TORCH,
    AttentionKernels,
    CausalAttention,
    attention_choice,
    attention_facts,
    core_attention,
)
from trainer.kernels.cpp import (
    CppActivations,
    CppAdam,
    CppAttention,
    CppCrossEntropy,
    CppNorms,
    CppResiduals,
    refused,
)
from trainer.kernels.cross_entropy import CrossEntropyKernels
from trainer.kernels.cuda.activation import CudaActivations
from trainer.kernels.cuda.adam import CudaAdam
from trainer.kernels.cuda.cross_entropy import CudaCrossEntropy
from trainer.kernels.cuda.normalization import CudaNorms
from trainer.kernels.cuda.residual import CudaResiduals
from trainer.kernels.cuda.softmax import CudaSoftmax
from trainer.kernels.native.cuda_driver import CudaDriver, CudaRunner
from trainer.kernels.native.launching import KernelError
from trainer.kernels.native.libraries import NotBuilt, cubins_for, operations
from trainer.kernels.normalization import Norms
from trainer.kernels.residual import ResidualKernels
from trainer.kernels.softmax import SoftmaxKernels
from trainer.recipe.model_options import precision_of
from trainer.recipe.options import Options, OptionsError

CUDA, APEX = "CUDA", "apex"
#: The default of --kernels and --attention.
AUTO = "auto"


@dataclass(frozen=True)
class Path:
    """The implementation of a family (`torch`, `C++`, `CUDA`, `flash-attn` ...), and the reason in a few words."""

    family: str
    by: str
    why: str


@dataclass(frozen=True)
class Operations:
    """The kernels of each family; None where torch computes it. paths: the implementation of each, with the reason."""

    norms: Norms | None = None
    activations: ActivationKernels | None = None
    residuals: ResidualKernels | None = None
    attention: AttentionKernels | None = None
    softmax: SoftmaxKernels | None = None
    core_attention: CausalAttention | None = None
    cross_entropy: CrossEntropyKernels | None = None
    adam: AdamKernels | None = None
    paths: tuple[Path, ...] = ()


#: Everything by torch, whatever is built.
BY_TORCH = Operations()


@dataclass(frozen=True)
class Family:
    """One attribute of Operations, with its classes for a CPU and a GPU.

    is_needed: True if a training with these options computes it. unfused_by: Megatron's flag that leaves it to torch.
    """

    attribute: str
    name: str
    cpp: Callable[[Any], Any]
    cuda: Callable[[Any], Any]
    is_needed: Callable[[Options], bool] = lambda _options: True
    unfused_by: str | None = None

    def is_unfused(self, options: Options) -> bool:
        """Return True if Megatron's flag is given."""
        return self.unfused_by is not None and options[self.unfused_by.removeprefix("--").replace("-", "_")]


@dataclass(frozen=True)
class Source:
    """The source of a device's kernels: a loaded library or a runner; `why` it is used, or why there is none."""

    by: str
    made_from: Any
    why: str


FAMILIES = (
    Family("norms", "norms", CppNorms, CudaNorms),
    Family("activations", "activations", CppActivations, CudaActivations, lambda options: not options.glu_activation),
    Family(
        "activations",
        "gates",
        CppActivations,
        CudaActivations,
        lambda options: bool(options.glu_activation),
        unfused_by="--no-bias-swiglu-fusion",
    ),
    Family(
        "residuals",
        "residuals",
        CppResiduals,
        CudaResiduals,
        lambda options: options.hidden_dropout > 0 or not options.disable_bias_linear,
        unfused_by="--no-bias-dropout-fusion",
    ),
    Family("cross_entropy", "cross entropy", CppCrossEntropy, CudaCrossEntropy),
    Family("adam", "Adam", CppAdam, CudaAdam, lambda options: options.optimizer == "adam"),
)


def choose(options: Options, device: torch.device) -> Operations:
    """Choose the kernels of a training with these options on `device`. Never raises for what is not built.

    Raises OptionsError for options that conflict, and under --abort-on-unmet-fused-kernel-constraints if torch has to
    compute a family that no option leaves to it.
    """
    must_be_met = options.abort_on_unmet_fused_kernel_constraints
    if options.kernels == TORCH:
        if options.attention not in (AUTO, TORCH):
            raise OptionsError(f"--attention {options.attention} with --kernels torch: leave out one of them")
        if must_be_met:
            raise OptionsError("--abort-on-unmet-fused-kernel-constraints with --kernels torch: leave out one of them")
    source = source_of(options, device)
    made: dict[str, Any] = {}
    paths, unmet = [], []
    for family in (one for one in FAMILIES if one.is_needed(options)):
        kernels, path = _of_family(family, options, source)
        paths.append(path)
        if kernels is not None:
            made[family.attribute] = kernels
        elif not family.is_unfused(options):
            unmet.append(f"{path.family}: {path.why}")
    of_attention, path = _attention(options, device, source)
    if must_be_met and unmet:  # attention by torch is one fused kernel too
        raise OptionsError(f"--abort-on-unmet-fused-kernel-constraints: torch would compute {'; '.join(unmet)}")
    return Operations(**made, **of_attention, paths=(*paths, path))


def _of_family(family: Family, options: Options, source: Source) -> tuple[Any, Path]:
    """Return a family's kernels (None: torch computes it), and the implementation with the reason."""
    if family.is_unfused(options):
        return None, Path(family.name, TORCH, str(family.unfused_by))
    why = source.why
    too_wide = CudaNorms.refuses(options.hidden_size) if source.by == CUDA and family.cuda is CudaNorms else None
    if source.made_from is not None and too_wide is None:
        return _made(family, source), Path(family.name, source.by, why)
    why = too_wide or why
    if source.by == CUDA and family.attribute in APEX_COMPUTES:
        try:
            return apex_kernels(family.attribute), Path(family.name, APEX, why)
        except ApexMissing as error:
            why = why if str(error) == NOT_INSTALLED else f"{why}; {error}"
    return None, Path(family.name, TORCH, why)


def _made(family: Family, source: Source) -> Any:
    return (family.cpp if source.by == CPP else family.cuda)(source.made_from)


def source_of(options: Options, device: torch.device) -> Source:
    """Return the source of kernels on `device`. Loads what is built, and compiles nothing."""
    if options.kernels == TORCH:
        return Source(TORCH, None, "--kernels torch")
    if device.type == "cuda":
        return _on_gpu(device)
    library = operations()
    if isinstance(library, NotBuilt):
        return Source(CPP, None, library.why)
    without_type = refused(DTYPES[precision_of(options)])
    return Source(CPP, None, without_type) if without_type else Source(CPP, library, "built")


def every_kernel(source: Source) -> Operations:
    """Return all families of kernels for the source's device, whatever a training would use."""
    if source.made_from is None:
        return Operations()
    softmax = CudaSoftmax(source.made_from) if source.by == CUDA else None
    return Operations(**{family.attribute: _made(family, source) for family in FAMILIES}, softmax=softmax)


def by_torch_alone(options: Options, why: str) -> Operations:
    """Return torch for every family that the training needs, whatever is built."""
    needed = [family.name for family in FAMILIES if family.is_needed(options)]
    return Operations(paths=tuple(Path(name, TORCH, why) for name in (*needed, "attention")))


def kernel_lines(operations: Operations) -> list[str]:
    """Return the lines for the training log: one per implementation, with the reason."""
    families: dict[tuple[str, str], list[str]] = {}
    for path in operations.paths:
        families.setdefault((path.by, path.why), []).append(path.family)
    return [f"kernels: {by} computes {', '.join(names)} ({why})" for (by, why), names in families.items()]


def _attention(options: Options, device: torch.device, source: Source) -> tuple[dict[str, Any], Path]:
    """Return attributes of Operations for attention, and its path. It depends on more than the built kernels."""
    has_cpp = source.made_from is not None and source.by == CPP
    has_softmax = source.made_from is not None and source.by == CUDA and not options.no_masked_softmax_fusion
    asked = TORCH if options.kernels == TORCH else None if options.attention == AUTO else options.attention
    facts = attention_facts(options, device, has_cpp, has_softmax)
    try:
        by, why = attention_choice(facts, asked)
    except ValueError as error:
        raise OptionsError(f"--attention {options.attention}: {error}") from None
    if source.made_from is None and device.type == "cpu" and not facts.dropout:
        why = source.why
    path = Path("attention", by, why)
    if by == CPP:
        return {"attention": CppAttention(source.made_from)}, path
    softmax = CudaSoftmax(source.made_from) if by == SOFTMAX else None
    return {"softmax": softmax, "core_attention": core_attention(by, softmax)}, path


def _on_gpu(device: torch.device) -> Source:
    capability = torch.cuda.get_device_capability(device)
    cubins = cubins_for(capability)
    if isinstance(cubins, NotBuilt):
        return Source(CUDA, None, cubins.why)
    number = device.index or 0
    try:
        runner = CudaRunner(CudaDriver(), number, cubins, _current_stream(number))
    except KernelError as error:
        return Source(CUDA, None, str(error))
    return Source(CUDA, runner, f"built for {capability[0]}.{capability[1]}")


def _current_stream(device: int) -> Callable[[], int]:
    """Return a function that returns the address of torch's stream, as Triton does: without making a Stream."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is None:
        return lambda: int(torch.cuda.current_stream(device).cuda_stream)
    return functools.partial(raw, device)
