"""Tests of compiling, which `trainer.kernels.native.building` contains."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from trainer.kernels.native import toolchains
from trainer.kernels.native.building import compile_cubin, run_compiler
from trainer.kernels.native.toolchains import CompilerError, Nvcc, Nvrtc, cuda_compiler, torch_cuda_major


def test_a_compiler_that_hangs_is_ended() -> None:
    with pytest.raises(CompilerError, match=r"600: sleep took more than 1 s"):
        run_compiler(["sleep", "600"], limit_s=1)


@pytest.mark.parametrize("name", ["a$(touch pwned)", "a`touch pwned`", 'a"b', "a\\b", "a\nb"])
def test_a_path_that_a_shell_would_read_is_not_handed_to_nvcc(tmp_path: Path, name: str) -> None:
    nvcc = Nvcc(os.devnull, "13.0", ("sm_80",))
    with pytest.raises(CompilerError, match=re.escape(repr(str(tmp_path / name))[:-1])):
        compile_cubin(nvcc, tmp_path / name / "smoke.cu", "sm_80", (), tmp_path / "smoke.cubin")
    with pytest.raises(CompilerError, match=re.escape(repr(str(tmp_path / name))[:-1])):
        compile_cubin(nvcc, tmp_path / "smoke.cu", "sm_80", (), tmp_path / name / "smoke.cubin")


@pytest.mark.parametrize(
    ("of_torch", "taken"),
    [("12", "NVRTC 12.9"), ("13", "nvcc 13.0.88"), ("11", "nvcc 13.0.88"), (None, "nvcc 13.0.88")],
)
def test_of_several_compilers_the_one_of_torchs_cuda_is_taken(
    of_torch: str | None, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchains, "nvcc", lambda: Nvcc("/nvcc", "13.0.88", ("sm_80",)))
    monkeypatch.setattr(toolchains, "nvrtcs", lambda: (Nvrtc("/nvrtc", "12.9", ("sm_70", "sm_80")),))
    monkeypatch.setattr(toolchains, "torch_cuda_major", lambda: of_torch)
    assert cuda_compiler("sm_80").name == taken
    assert cuda_compiler("sm_70").name == "NVRTC 12.9"


@pytest.mark.parametrize(
    ("line", "major"), [("cuda: Optional[str] = '12.8'", "12"), ("cuda: Optional[str] = None", None)]
)
def test_torchs_cuda_is_read_from_its_files(
    line: str, major: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(f"__version__ = '2.8.0'\n{line}\nhip: Optional[str] = '6.1'\n")
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda _: type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    )
    assert torch_cuda_major() == major
