from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator.runner import needs_gxx
from trainer.kernels.native import libraries, toolchains
from trainer.kernels.native.artifacts import cuda_artifact, library_artifact, own_levels
from trainer.kernels.native.building import build
from trainer.kernels.native.libraries import NotBuilt, load_library
from trainer.kernels.native.toolchains import CompilerError

LEVEL = own_levels()[0]


def built(library: str) -> None:
    artifact = library_artifact(library, LEVEL)
    assert artifact
    build(artifact)


@needs_gxx
def test_a_library_is_loaded_once_it_was_built_and_says_why_not_before(cache: Path, csrc: Path) -> None:
    before = load_library("data")
    assert isinstance(before, NotBuilt)
    assert str(cache) in before.why and "opsctl kernels build" in before.why
    built("data")
    after = load_library("data")
    assert isinstance(after, ctypes.CDLL)
    assert after.add(2, 3) == 5


@needs_gxx
@pytest.mark.parametrize("file", ["adding.cpp", "extra.h"])
def test_a_library_of_other_sources_is_not_loaded(cache: Path, csrc: Path, file: str) -> None:
    built("data")
    with (csrc / "data" / file).open("a") as source:
        source.write("// another line\n")
    assert isinstance(load_library("data"), NotBuilt)
    built("data")
    assert isinstance(load_library("data"), ctypes.CDLL)


@needs_gxx
def test_a_library_beside_another_torch_is_not_loaded(cache: Path, csrc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built("data")
    monkeypatch.setattr("trainer.kernels.native.artifacts.torch_version", lambda: "9.9.9")
    assert isinstance(load_library("data"), NotBuilt)


@needs_gxx
def test_what_is_there_of_the_same_compiler_is_not_built_again(cache: Path, csrc: Path) -> None:
    artifact = library_artifact("data", LEVEL)
    assert artifact
    first = build(artifact)
    written = (first.folder / "libdata.so").stat().st_mtime_ns
    assert build(artifact) == first
    assert (first.folder / "libdata.so").stat().st_mtime_ns == written


@needs_gxx
def test_a_source_may_ask_for_flags_of_its_own(cache: Path, csrc: Path) -> None:
    source = csrc / "data" / "adding.cpp"
    source.write_text("// flags: -DEXTRA=40\n" + source.read_text().replace('#include "extra.h"\n', ""))
    built("data")
    loaded = load_library("data")
    assert isinstance(loaded, ctypes.CDLL) and loaded.add(1, 1) == 42


@needs_gxx
def test_a_source_that_does_not_compile_is_told_by_the_compilers_first_error(cache: Path, csrc: Path) -> None:
    (csrc / "data" / "wrong.cpp").write_text("int f() { return none; }\n")
    with pytest.raises(CompilerError, match=r"wrong.cpp:1:\d+: error: 'none'"):
        built("data")
    assert not [one for one in cache.iterdir() if one.is_dir()]


@needs_gxx
def test_threads_of_the_operations_are_torchs_own_and_as_many(cache: Path, csrc: Path) -> None:
    artifact = library_artifact("operations", LEVEL)
    assert artifact
    library = build(artifact).folder / "liboperations.so"
    code = (
        "import ctypes, torch\ntorch.set_num_threads(3)\n"
        f"library = ctypes.CDLL({str(library)!r})\nprint(library.threads())\n"
        "print(len({l.split()[-1] for l in open('/proc/self/maps') if 'libgomp' in l}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["3", "1"], done.stderr


def test_without_a_compiler_a_sentence_says_how_to_get_one(
    cache: Path, csrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (csrc / "cuda" / "kernel.cu").write_text("")
    monkeypatch.setattr("trainer.kernels.native.building.host_compiler", lambda: None)
    monkeypatch.setattr(toolchains, "nvcc", lambda: None)
    monkeypatch.setattr(toolchains, "nvrtcs", lambda: ())
    with pytest.raises(CompilerError, match=r"C\+\+.*install g\+\+"):
        built("data")
    artifact = cuda_artifact("sm_80")
    assert artifact
    with pytest.raises(CompilerError, match=r"pip install 'nvidia-cuda-nvrtc-cu12<13'"):
        build(artifact)


def test_a_compiler_that_no_longer_takes_a_chip_is_named_with_the_one_that_does(
    cache: Path, csrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (csrc / "cuda" / "kernel.cu").write_text("")
    monkeypatch.setattr(toolchains, "nvcc", lambda: toolchains.Nvcc("/nvcc", "13.0.88", ("sm_80", "sm_90")))
    monkeypatch.setattr(toolchains, "nvrtcs", lambda: ())
    artifact = cuda_artifact("sm_70")
    assert artifact
    with pytest.raises(CompilerError, match=r"nvcc 13\.0\.88 .*sm_70.*cu12<13"):
        build(artifact)


def test_levels_are_those_that_the_cpu_has_with_all_below() -> None:
    from trainer.kernels.native.artifacts import levels_of

    second = {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}
    third = second | {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}
    fourth = third | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    assert levels_of(set()) == ()
    assert levels_of(second) == ("x86-64-v2",)
    assert levels_of(third - {"popcnt"}) == ()
    assert levels_of(fourth) == ("x86-64-v4", "x86-64-v3", "x86-64-v2")


def test_a_cpu_without_any_level_is_told(csrc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "own_levels", lambda: ())
    loaded = load_library("data")
    assert isinstance(loaded, NotBuilt) and "x86-64-v2" in loaded.why


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_is_that_of_cuda_home_before_the_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "bin" / "nvcc"
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\nexec {shutil.which("nvcc")} "$@"\n')
    own.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    found = toolchains.nvcc.__wrapped__()
    assert found and found.path == str(own) and "sm_90" in found.architectures
    assert os.environ["CUDA_HOME"]
