"""Importing torch and DeepSpeed once, without what makes that slow or compiles something when a job starts."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainer.core.uncompiled import COMPILER, leave_compiler_out

# When this process, or the launcher that forked it, began: the exit duration counts from here.
STARTED_AT = time.time()

#: glibc's settings on a CPU: it keeps no small freed pieces apart. It takes tensors from 64 bytes more than they are,
#: and a rest that is kept apart stands between two large pieces that would be one: a tensor freed is no place for the
#: next of its size.
ALLOCATOR, ALLOCATOR_ON_CPU = "GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0"

_COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"

# What DeepSpeed otherwise imports inside `initialize` and at the first step, and a process forked afterwards gets for
# nothing.
_NEEDED_LATER = (
    "deepspeed.runtime.pipe.engine",
    "deepspeed.runtime.bf16_optimizer",
    "deepspeed.runtime.fp16.fused_optimizer",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.data_pipeline.data_sampling.data_sampler",
    "deepspeed.checkpoint",
    "deepspeed.comm.mori",
    "deepspeed.module_inject.auto_ep_layer",
    "torch.profiler._cupti_monitor",
    "torch.utils.serialization.config",
)


def set_process_defaults(ranks_on_node: int) -> None:
    """Environment that must be set before torch is imported; what the user has set stays.

    Touches no GPU: a process that has used CUDA cannot fork ranks that use it. For the same reason `is_available`,
    which torch's launcher asks, goes through the driver's management library instead of a CUDA context.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if ranks_on_node > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not Path("/dev/nvidiactl").exists():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def begin_anew_with_allocator() -> None:
    """Begin this program once more with what glibc reads only as a process begins; what the user has set stays.

    Nothing on a machine with a GPU, where tensors are elsewhere. To be called before anything is under way.
    """
    if ALLOCATOR in os.environ or Path("/dev/nvidiactl").exists():
        return
    os.environ[ALLOCATOR] = ALLOCATOR_ON_CPU
    os.execv(sys.executable, sys.orig_argv)


def import_engine(module_names: tuple[str, ...] = (), with_compiler: bool = False) -> None:
    """Import torch and DeepSpeed with all that training needs of them, and then `module_names`.

    torch's compiler is left out, unless asked for: `torch.utils.checkpoint` loads it at its first call. And two of
    DeepSpeed 0.19's habits are switched off. On a CPU it builds `deepspeed_shm_comm` with a C++ compiler at the first
    `init_distributed`, a minute under a lock that a killed rank leaves behind. And its Muon optimizer, imported by
    every ZeRO-1 engine, decorates three functions with `torch.compile`, which loads all of inductor for functions
    never called here.
    """
    with _without_looking_for_garbage():
        with _without_a_compiler_cache():
            _import_engine()
            for name in COMPILER if with_compiler else ():
                importlib.import_module(name)
        for name in module_names:
            importlib.import_module(name)


@contextlib.contextmanager
def _without_looking_for_garbage() -> Iterator[None]:
    """Import without Python's collector, which goes a dozen times through all that has been imported so far."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def _without_a_compiler_cache() -> Iterator[None]:
    """Let torch create its compiler cache in a folder that is removed, not permanently in every node's /tmp.

    It creates one at import, whether or not anything is compiled. A cache set by the user stays.
    """
    if _COMPILER_CACHE in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="torch-cache-", ignore_cleanup_errors=True) as folder:
        os.environ[_COMPILER_CACHE] = folder
        try:
            yield
        finally:
            del os.environ[_COMPILER_CACHE]


def _import_engine() -> None:
    torch: Any = importlib.import_module("torch")
    compile_for_real = torch.compile
    torch.compile = _leave_uncompiled
    try:
        deepspeed: Any = importlib.import_module("deepspeed")
        compiler: Any = importlib.import_module("deepspeed.runtime.compiler")
        decorate_for_real, compiler.compile = compiler.compile, _leave_uncompiled
        try:
            for name in _NEEDED_LATER:
                with contextlib.suppress(ModuleNotFoundError):  # what a version does not have it does not need
                    importlib.import_module(name)
        finally:
            compiler.compile = decorate_for_real
    finally:
        torch.compile = compile_for_real
    leave_compiler_out(torch)
    # Set, not asked for: the first look at this table probes every operation, with compilers and the GPU.
    vars(deepspeed.ops).setdefault("__compatible_ops__", {})["deepspeed_shm_comm"] = False


def _leave_uncompiled(function: Callable[..., Any] | None = None, *_: Any, **__: Any) -> Any:
    """Stands for `torch.compile` both as `@compile` and as `@compile(...)`."""
    return function if function is not None else lambda decorated: decorated
