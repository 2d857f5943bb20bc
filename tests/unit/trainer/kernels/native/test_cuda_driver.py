"""Launches by CUDA's driver: here against a stand-in for libcuda, as there is no GPU; with `-m gpu` on a real one."""

from __future__ import annotations

import ctypes
import re
import subprocess
from ctypes import c_float, c_int64
from pathlib import Path

import pytest

from tests.emulator.runner import needs_gxx
from trainer.kernels.native.cuda_driver import CudaDriver, CudaRunner
from trainer.kernels.native.launching import KernelError, Launch
from trainer.kernels.native.libraries import Cubins

SOURCE = Path(__file__).with_name("stand_in_cuda.cpp")
pytestmark = needs_gxx


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", "-o", library, SOURCE], check=True, timeout=300)
    return library


@pytest.fixture
def runner(stand_in: Path, tmp_path: Path) -> CudaRunner:
    copy = tmp_path / "libcuda.so.1"  # a library of its own has a log of its own
    copy.write_bytes(stand_in.read_bytes())
    (tmp_path / "norms.cubin").write_bytes(b"cubin")
    cubins = Cubins("sm_80", dict.fromkeys(("known_f32", "unknown_f32"), tmp_path / "norms.cubin"))
    return CudaRunner(CudaDriver(str(copy)), 0, cubins, lambda: 77)


def log_of(runner: CudaRunner) -> list[str]:
    library = runner._driver._library
    library.stand_in_log.restype = ctypes.c_char_p
    return str(library.stand_in_log().decode()).splitlines()


def a_launch(kernel: str = "known_f32", shared_bytes: int = 0) -> Launch:
    return Launch(kernel, (5, 2, 1), (128, 1, 1), shared_bytes, (c_int64(2**40), c_float(0.5)))


def test_a_launch_gives_sizes_stream_and_arguments_and_loads_a_module_once(runner: CudaRunner) -> None:
    for _ in range(2):
        runner.launch(a_launch())
    launched = "launch 5,2,1 128,1,1 0 77 1099511627776 0.500000"
    assert log_of(runner) == ["context", "module", "function known_f32", launched, launched]


def test_more_shared_memory_than_is_free_to_all_is_asked_for_once(runner: CudaRunner) -> None:
    for shared_bytes in (47 << 10, 100_000, 90_000):
        runner.launch(a_launch(shared_bytes=shared_bytes))
    assert [line for line in log_of(runner) if line.startswith("shared")] == ["shared 100000"]


def test_what_fits_only_without_the_kernels_own_static_bytes_is_asked_for(runner: CudaRunner) -> None:
    runner.launch(a_launch(shared_bytes=48 << 10))
    assert "shared 49152" in log_of(runner)


def test_a_cubin_that_the_driver_refuses_is_known_before_any_launch(stand_in: Path, tmp_path: Path) -> None:
    for name, contents in (("sound", b"cubin"), ("broken", b"text")):
        (tmp_path / f"{name}.cubin").write_bytes(contents)
    for name, said in (("broken", "cuModuleLoadData: CUDA_ERROR_INVALID_VALUE"), ("absent", "No such file")):
        cubins = Cubins("sm_80", {f"{one}_f32": tmp_path / f"{one}.cubin" for one in ("sound", name)})
        with pytest.raises(KernelError, match=rf"{name}\.cubin: .*{said}"):
            CudaRunner(CudaDriver(str(stand_in)), 0, cubins, lambda: 77)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("unknown_f32", "cuModuleGetFunction: CUDA_ERROR_NOT_FOUND in words"),
        ("absent_f32", "absent_f32: "),
    ],
)
def test_what_cuda_refuses_is_named(runner: CudaRunner, kernel: str, said: str) -> None:
    with pytest.raises(KernelError, match=re.escape(said)):
        runner.launch(a_launch(kernel))


def test_the_devices_facts_are_asked_by_their_numbers(runner: CudaRunner) -> None:
    facts = runner.facts
    assert (facts.name, facts.capability, facts.multiprocessors) == ("stand-in", (750, 760), 160)
    assert (facts.shared_bytes_per_block, facts.l2_bytes) == (970, 380)


def test_without_a_driver_that_is_said() -> None:
    with pytest.raises(KernelError, match="libnone"):
        CudaDriver("libnone.so.1")
