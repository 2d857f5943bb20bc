"""The choice of a training's kernels: by its options, by what is built, and by its device.

Nothing is compiled here: `opsctl kernels build` does that, ahead of jobs. torch computes what is not built, and what it
was measured to compute faster (`opsctl kernels measure`). `Operations.paths` tells the implementation of each family
and the reason.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainer.core.dtypes import DTYPES
from trainer.kernels.activation import ActivationKernels
from trainer.kernels.adam import AdamKernels
from trainer.kernels.apex import NOT_INSTALLED, ApexMissing, apex_kernels, why_not_apex
from trainer.kernels.attention import (
    AttentionBy,
    AttentionKernels,
    CausalAttention,
    attention_choice,
    attention_facts,
    core_attention,
)
from trainer.kernels.cpp import refused
from trainer.kernels.cross_entropy import CrossEntropyKernels
from trainer.kernels.native.cuda_driver import CudaDriver, CudaRunner
from trainer.kernels.native.launching import KernelError
from trainer.kernels.native.libraries import NotBuilt, cubins_for, operations
from trainer.kernels.normalization import Norms
from trainer.kernels.residual import ResidualKernels
from trainer.kernels.softmax import SoftmaxKernels
from trainer.kernels.times import (
    NOTHING_MEASURED,
    KeptTimes,
    decided,
    device_name,
    times_for,
)
from trainer.kernels.ways import Sizes
from trainer.recipe.model_options import precision_of
from trainer.recipe.options import Options, OptionsError


@dataclass(frozen=True)
class Path:
    """The implementation of a family of operations (`torch`, `C++`, `CUDA`, `flash-attn` ...), and the reason in
    short.
    """

    family: str
    by: str
    why: str


@dataclass(frozen=True)
class Operations:
    """The kernels of each family; None where torch computes it.

    paths: who does, and why. notes: what was there to choose by, or from, and was not taken up.
    """

    norms: Norms | None = None
    activations: ActivationKernels | None = None
    residuals: ResidualKernels | None = None
    attention: AttentionKernels | None = None
    softmax: SoftmaxKernels | None = None
    core_attention: CausalAttention | None = None
    cross_entropy: CrossEntropyKernels | None = None
    adam: AdamKernels | None = None
    paths: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


#: Everything by torch, whatever there is.
BY_TORCH = Operations()


CPP, CUDA, TORCH, APEX = "C++", "CUDA", "torch", "apex"
#: Of --kernels and --attention: what is best of all that is there.
AUTO = "auto"
_ATTENTION, _CUDA_SOFTMAX = "attention", "softmax:CudaSoftmax"


@dataclass(frozen=True)
class Family:
    """One attribute of Operations, and its classes: of `trainer.kernels.cpp`, and of `.cuda` as module:class.

    is_needed: whether a training with these options computes it at all on a device of that type. unfused_by: Megatron's
    switch that leaves it to torch. cuda_refuses: why that class has no kernels for such a training, or None.
    """

    attribute: str
    name: str
    cpp: str | None
    cuda: str | None
    is_needed: Callable[[Options, str], bool] = lambda _options, _device: True
    unfused_by: str | None = None
    cuda_refuses: Callable[[Any, Options], str | None] = lambda _kernels, _options: None


@dataclass(frozen=True)
class Source:
    """The source of a device's kernels: a loaded library or a runner; `why` it is used, or why there is none."""

    by: str
    made_from: Any
    why: str


def _is_gated(options: Options) -> bool:
    return options.glu_activation is not None


FAMILIES = (
    Family(
        "norms",
        "norms",
        "CppNorms",
        "normalization:CudaNorms",
        cuda_refuses=lambda kernels, options: kernels.refuses(options.hidden_size),
    ),
    Family(
        "activations",
        "activations",
        "CppActivations",
        "activation:CudaActivations",
        is_needed=lambda options, _device: not _is_gated(options),
    ),
    Family(
        "activations",
        "gates",
        "CppActivations",
        "activation:CudaActivations",
        is_needed=lambda options, _device: _is_gated(options),
        unfused_by="--no-bias-swiglu-fusion",
    ),
    Family(
        "residuals",
        "residuals",
        "CppResiduals",
        "residual:CudaResiduals",
        is_needed=lambda options, _device: options.hidden_dropout > 0 or not options.disable_bias_linear,
        unfused_by="--no-bias-dropout-fusion",
    ),
    Family("cross_entropy", "cross entropy", "CppCrossEntropy", "cross_entropy:CudaCrossEntropy"),
    Family("adam", "Adam", "CppAdam", "adam:CudaAdam", is_needed=lambda options, _device: options.optimizer == "adam"),
)


def choose(options: Options, device: torch.device, kept: KeptTimes = NOTHING_MEASURED) -> Operations:
    """Choose the kernels of a training with these options on `device`. Never raises for what is not built.

    kept: measurements, which count if they are of such a device. Raises OptionsError under
    --abort-on-unmet-fused-kernel-constraints if torch has to compute a family that no option leaves to it, and that it
    was not measured to compute faster.
    """
    if options.kernels == TORCH and options.attention not in (AUTO, TORCH):
        raise OptionsError(f"--attention {options.attention} with --kernels torch: leave out one of them")
    source = source_of(options, device)
    if options.kernels == TORCH or (kept.families and kept.device != device_name(device)):
        kept = NOTHING_MEASURED
    made: dict[str, Any] = {}
    paths, unmet = [], []
    for family in FAMILIES:
        if not family.is_needed(options, device.type):
            continue
        ours = family_kernels(family, options, source)
        kernels, path = _taken(family, ours, options, source, kept)
        paths.append(path)
        if kernels is not None:
            made[family.attribute] = kernels
        elif isinstance(ours, str) and not _unfused(family, options):
            unmet.append(path)
    of_attention, path = _attention(options, device, source)
    if options.abort_on_unmet_fused_kernel_constraints:
        _refuse_unmet(options, unmet)
    return Operations(**made, **of_attention, paths=(*paths, path), notes=(*kept.notes, *_apex_notes(source, kept)))


def family_kernels(family: Family, options: Options, source: Source) -> Any:
    """Ours of this family for such a training; a text: why there are none."""
    unfused = _unfused(family, options)
    form = family.cpp if source.by == CPP else family.cuda
    if source.made_from is None or unfused:
        return unfused or source.why
    if form is None:
        return f"it has no form in {source.by}"
    return _refused(family, source, options) or _class_of(form, source.by)(source.made_from)


def _taken(family: Family, ours: Any, options: Options, source: Source, kept: KeptTimes) -> tuple[Any, Path]:
    """Return the family's implementation, None for torch, and why: the preferred one, or one measured as faster."""
    kernels: dict[str, Any] = {TORCH: None} if isinstance(ours, str) else {source.by: ours, TORCH: None}
    why = ours if isinstance(ours, str) else source.why
    if _unfused(family, options) or not kept.families:
        way = next(iter(kernels))
        return kernels[way], Path(family.name, way, why)
    sizes = Sizes.of(options)
    times = times_for(kept.families, family.name, sizes.kind(family.name), sizes.precision, sizes.columns(family.name))
    found = decided(list(kernels), times, kept.device)
    if times is not None and APEX in times.seconds and source.by == CUDA:
        with_apex = decided([*kernels, APEX], times, kept.device)
        try:  # it is imported where it is taken
            kernels[APEX] = apex_kernels(family.attribute) if with_apex.way == APEX else None
            found = with_apex
        except ApexMissing as error:
            why = f"{why}; it was measured with apex: {error}"
    said = "; ".join(filter(None, (found.why or why, found.beside)))
    return kernels[found.way], Path(family.name, found.way, said)


def _apex_notes(source: Source, kept: KeptTimes) -> tuple[str, ...]:
    """Return notes about an apex that was not measured, or is another project."""
    if source.by != CUDA or any(APEX in one.seconds for one in kept.families):
        return ()
    why_not = why_not_apex("norms")
    if why_not is None:
        return ("apex is installed and was not measured beside the kernels: opsctl kernels measure",)
    return () if why_not == NOT_INSTALLED else (why_not,)


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
    """All families that there are kernels for on the source's device, whatever a training would take of them."""
    if source.made_from is None:
        return Operations()
    forms = {family.attribute: family.cpp if source.by == CPP else family.cuda for family in FAMILIES}
    if source.by == CUDA:
        forms["softmax"] = _CUDA_SOFTMAX
    return Operations(**{name: _class_of(form, source.by)(source.made_from) for name, form in forms.items() if form})


def by_torch_alone(options: Options, device: torch.device, why: str) -> Operations:
    """Every family that the training needs by torch, whatever there is."""
    needed = [family.name for family in FAMILIES if family.is_needed(options, device.type)]
    return Operations(paths=tuple(Path(name, TORCH, why) for name in (*needed, _ATTENTION)))


def kernel_lines(operations: Operations) -> list[str]:
    """Return the lines for the training log: one per implementation with its families and reason; then the notes."""
    families: dict[tuple[str, str], list[str]] = {}
    for path in operations.paths:
        families.setdefault((path.by, path.why), []).append(path.family)
    lines = [f"kernels: {by} computes {', '.join(names)} ({why})" for (by, why), names in families.items()]
    return lines + [f"kernels: {note}" for note in operations.notes]


def has_compiler() -> bool:
    """Return whether torch.compile can compile for a GPU."""
    return importlib.util.find_spec("triton") is not None


def _attention(options: Options, device: torch.device, source: Source) -> tuple[dict[str, Any], Path]:
    """Attributes of Operations for attention, which hangs on more than what is built, and who computes it."""
    by_cpp = by_softmax = None
    if source.made_from is not None and source.by == CPP:
        by_cpp = _class_of("CppAttention", CPP)(source.made_from)
    elif source.made_from is not None and not options.no_masked_softmax_fusion:
        by_softmax = _class_of(_CUDA_SOFTMAX, CUDA)(source.made_from)
    asked = None if options.attention == AUTO else AttentionBy(options.attention)
    if options.kernels == TORCH:
        asked = AttentionBy.TORCH
    try:
        facts = attention_facts(options, device, by_cpp is not None, by_softmax is not None)
        choice = attention_choice(facts, asked)
    except ValueError as error:
        raise OptionsError(f"--attention {options.attention}: {error}") from None
    nothing_built = source.made_from is None and device.type == "cpu" and not facts.dropout
    path = Path(_ATTENTION, choice.by.value, source.why if nothing_built else choice.why)
    if choice.by is AttentionBy.CPP:
        return {"attention": by_cpp}, path
    softmax = by_softmax if choice.by is AttentionBy.SOFTMAX else None
    return {"softmax": softmax, "core_attention": core_attention(choice.by, softmax)}, path


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
    """Asks for the address of torch's stream on a GPU, as Triton's launches do: a Stream need not be made for it."""
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is None:
        return lambda: int(torch.cuda.current_stream(device).cuda_stream)
    return functools.partial(raw, device)


def _class_of(form: str, by: str) -> Any:
    module, _, name = form.rpartition(":")
    place = "trainer.kernels.cpp" if by == CPP else f"trainer.kernels.cuda.{module}"
    return getattr(importlib.import_module(place), name)


def _unfused(family: Family, options: Options) -> str | None:
    switch = family.unfused_by
    given = switch is not None and options[switch.removeprefix("--").replace("-", "_")]
    return switch if given else None


def _refused(family: Family, source: Source, options: Options) -> str | None:
    """Asked here, as what cannot be launched would otherwise end the first step."""
    if source.by != CUDA or family.cuda is None:
        return None
    return family.cuda_refuses(_class_of(family.cuda, CUDA), options)


def _refuse_unmet(options: Options, unmet: Sequence[Path]) -> None:
    """Attention by torch is one fused kernel too, and never among them."""
    if options.kernels == TORCH:
        raise OptionsError("--abort-on-unmet-fused-kernel-constraints with --kernels torch: leave out one of them")
    if unmet:
        said = "; ".join(f"{path.family}: {path.why}" for path in unmet)
        raise OptionsError(f"--abort-on-unmet-fused-kernel-constraints: torch would compute {said}")
