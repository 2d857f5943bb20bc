"""Every `.cu` file compiles for every chip: nvcc for sm_80 and sm_90, NVRTC for sm_70; no kernel spills registers.

`make nightly` compiles all of them, in minutes. `make test` compiles the short files for one chip, and takes the names
of all kernels from the record of what was compiled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kernel_resources import RECORD, all_compiled, compiled, compiler_for, record, text_of
from tests.emulator.runner import kernels_in, needs_gxx
from trainer.kernels.native.artifacts import ARCHITECTURES, csrc_folder, kernel_sources
from trainer.kernels.native.building import resources_in
from trainer.kernels.native.cuda_driver import _SHARED_UNASKED
from trainer.kernels.native.toolchains import CompilerError

SOURCES = kernel_sources(csrc_folder())
SHORT = ("adam", "cross_entropy", "residual", "smoke")
RECORDED = json.loads(RECORD.read_text())


def pairs() -> list[Any]:
    """Each file with each chip."""
    return [
        pytest.param(source, one, marks=[] if source.stem in SHORT and one == "sm_80" else pytest.mark.nightly)
        for source in SOURCES
        for one in ARCHITECTURES
    ]


@pytest.mark.parametrize(("source", "architecture"), pairs(), ids=lambda one: getattr(one, "stem", one))
def test_it_compiles_and_no_kernel_spills(source: Path, architecture: str) -> None:
    if compiler_for(architecture) is None:
        pytest.skip(f"no compiler for {architecture} here")
    found = compiled(source, architecture)
    assert found, f"{source} has no kernels"
    assert not {kernel: used for kernel, used in found.items() if used["spilled_bytes"] or used["stack_bytes"]}
    assert found.keys() <= RECORDED["kernels"].keys()


@needs_gxx
def test_the_emulator_exports_every_kernel_that_compiles_and_no_two_files_one_of_the_same_name() -> None:
    names = [kernel for source in SOURCES for kernel in kernels_in(source)]
    assert sorted(names) == sorted(RECORDED["kernels"])


@pytest.mark.nightly
def test_the_record_is_what_compiles_now() -> None:
    for architecture in ARCHITECTURES:
        compiler = compiler_for(architecture)
        if compiler is None or compiler.name != RECORDED["compilers"].get(architecture):
            was = RECORDED["compilers"].get(architecture)
            pytest.skip(f"recorded with {was} for {architecture}, here is {compiler and compiler.name}")
    found = {job: one for job, one in all_compiled().items() if not isinstance(one, CompilerError)}
    assert RECORD.read_text() == text_of(record(found)), "python -m benchmarks.kernel_resources writes it again"


def test_no_kernels_static_shared_memory_is_more_than_what_launches_leave_for_it() -> None:
    recorded = RECORDED["kernels"]
    dynamic = [name for name in recorded if name.startswith(("norm_backward_", "cross_entropy_whole_"))]
    most = max(used["shared_bytes"] for name in dynamic for used in recorded[name].values())
    assert 0 < most <= (48 << 10) - _SHARED_UNASKED


def test_resources_are_read_from_what_the_assembler_says() -> None:
    said = (
        "ptxas info    : Compiling entry function 'one_f32' for 'sm_80'\n"
        "ptxas info    : Function properties for one_f32\n"
        "    24 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 1024 bytes smem, 376 bytes cmem[0]\n"
        "ptxas info    : Compiling entry function 'two_f16' for 'sm_80'\n"
        "ptxas info    : Function properties for two_f16\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 14 registers, 368 bytes cmem[0]\n"
    )
    assert resources_in(said) == {
        "one_f32": {"registers": 255, "shared_bytes": 1024, "spilled_bytes": 20, "stack_bytes": 24},
        "two_f16": {"registers": 14, "shared_bytes": 0, "spilled_bytes": 0, "stack_bytes": 0},
    }
