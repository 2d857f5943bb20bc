"""`make sanitize-gpu`, as far as it runs without a GPU: a stand-in for compute-sanitizer notes how it is called."""

from __future__ import annotations

import ctypes
import os
import shlex
from pathlib import Path

import pytest

from tests.sanitized_gpu import FOUND, TESTS, TOOLS, main


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a compute-sanitizer on the PATH writes its words; it ends with what `code` says, beside it."""
    log, code = tmp_path / "log", tmp_path / "code"
    program = tmp_path / "compute-sanitizer"
    program.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(log))}\nexit $(cat {shlex.quote(str(code))})\n')
    program.chmod(0o755)
    code.write_text("0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())
    return log


def test_every_tool_runs_the_tests_of_kernels_that_need_a_gpu(noted: Path) -> None:
    assert main() == 0
    lines = noted.read_text().splitlines()
    assert [line.split()[1] for line in lines] == list(TOOLS)
    assert all(line.endswith(f"-m gpu {TESTS}") and f"--error-exitcode {FOUND}" in line for line in lines)


def test_what_a_tool_finds_is_told_after_all_have_run(noted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (noted.parent / "code").write_text(str(FOUND))
    assert main(("memcheck", "racecheck")) == 1
    assert len(noted.read_text().splitlines()) == 2
    errors = capsys.readouterr().err
    assert "memcheck" in errors and "racecheck" in errors


def test_without_the_tool_or_a_driver_it_is_refused_by_name(
    noted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_driver(_name: str) -> object:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", no_driver)
    assert main() == 2 and "libcuda.so.1" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert main() == 2
    errors = capsys.readouterr().err
    assert "compute-sanitizer" in errors and "$CUDA_HOME" in errors
    assert not noted.exists()
