"""Building artifacts into the cache. Only `python -m trainer.kernels.native build` and tests come here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainer.kernels.native.artifacts import Artifact, csrc_folder, flags_of, torch_version
from trainer.kernels.native.cache import Built, find_by, put
from trainer.kernels.native.libraries import library_file
from trainer.kernels.native.toolchains import CompilerError, CudaCompiler, Nvcc, cuda_compiler, host_compiler

_COMPILE_S = 900.0
#: Characters that a shell reads inside quotation marks: nvcc passes its commands to one.
_OF_A_SHELL = re.compile(r"""[`$"\\\n]""")


def run_compiler(command: list[str], more: dict[str, str] | None = None, limit_s: float = _COMPILE_S) -> str:
    """Return a compiler's output. more: additional environment. Raises CompilerError with its first error, OSError."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **(more or {}), "LC_ALL": "C"},
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CompilerError(f"{command[-1]}: {command[0]} took more than {limit_s:g} s") from None
    if done.returncode:
        first = re.search(r"^.*\berror\b.*$", done.stdout, re.MULTILINE | re.IGNORECASE)
        ended = f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-500:]}"
        raise CompilerError(first[0] if first else ended)
    return done.stdout


_ENTRY = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)' for '(?P<architecture>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_SHARED = re.compile(r"(\d+) bytes smem")


def resources_in(said: str) -> dict[str, dict[str, int]]:
    """Return per kernel its registers and spilled and stack bytes per thread, and its static shared bytes per block."""
    found = {}
    for entry in _ENTRY.finditer(said):
        shared = _SHARED.search(entry["rest"])
        found[entry["kernel"]] = {
            "registers": int(entry["registers"]),
            "shared_bytes": int(shared[1]) if shared else 0,
            "spilled_bytes": int(entry["stores"]) + int(entry["loads"]),
            "stack_bytes": int(entry["stack"]),
        }
    return found


def build(artifact: Artifact, jobs: int = 1) -> Built:
    """Return the artifact from the cache, or build it with `jobs` compilers at once. Raises CompilerError, OSError.

    Several processes may build the same: the cache keeps the first complete result.
    """
    by = _compiler_for(artifact)

    def make(folder: Path) -> dict[str, dict[str, Any]]:
        return _make_cubins(artifact, folder, jobs) if artifact.is_cuda else _make_library(artifact, folder, jobs)

    return find_by(artifact, by) or put(artifact, by, torch_version(), make)


def _compiler_for(artifact: Artifact) -> str:
    if artifact.is_cuda:
        return cuda_compiler(artifact.target).name
    found = host_compiler()
    if found is None:
        raise CompilerError("no C++ compiler here: install g++ (Debian: apt-get install g++)")
    if "-fopenmp" in artifact.flags and not found.has_openmp:
        raise CompilerError(f"{found.path} is not GCC, and torch's threads use GCC's OpenMP: install g++")
    return found.version


def _make_library(artifact: Artifact, folder: Path, jobs: int) -> dict[str, dict[str, Any]]:
    found = host_compiler()
    assert found, "checked by _compiler_for"
    library = artifact.name.partition("-")[0]

    def compiled(source: Path) -> str:
        target = str(folder / f"{source.stem}.o")
        run_compiler([found.path, *artifact.flags, *flags_of(source), "-c", "-o", target, str(source)])
        return target

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compiled, artifact.sources))
    # The compiler's own run-time inside: nodes may have an older one than the machine that builds.
    link = ["-shared", "-static-libstdc++", "-static-libgcc", "-o", str(folder / library_file(library))]
    run_compiler([found.path, *artifact.flags, *link, *objects])
    for one in objects:
        Path(one).unlink()
    return {}


def _make_cubins(artifact: Artifact, folder: Path, jobs: int) -> dict[str, dict[str, Any]]:
    compiler = cuda_compiler(artifact.target)

    def compiled(source: Path) -> dict[str, dict[str, Any]]:
        cubin = folder / f"{source.stem}.cubin"
        said = compile_cubin(compiler, source, artifact.target, artifact.flags, cubin)
        return {kernel: {"file": cubin.name, **used} for kernel, used in resources_in(said).items()}

    kernels: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(compiled, artifact.sources):
            kernels |= found
    return kernels


def compile_cubin(compiler: CudaCompiler, source: Path, architecture: str, flags: tuple[str, ...], cubin: Path) -> str:
    """Compile one `.cu` file; return the assembler's report of each kernel's registers. Raises CompilerError."""
    include = csrc_folder() / "cuda"
    if isinstance(compiler, Nvcc):
        for path in (include, source, cubin):
            if _OF_A_SHELL.search(str(path)):
                raise CompilerError(
                    f"nvcc has a shell read {str(path)!r}, which has a character of the shell's: rename"
                )
        command = [compiler.path, *flags, f"-arch={architecture}", "-cubin", "-Xptxas", "-v", f"-I{include}"]
        return run_compiler([*command, "-o", str(cubin), str(source)])
    command = [sys.executable, "-m", "trainer.kernels.native.nvrtc", compiler.path, str(cubin), str(source)]
    packages = str(Path(__file__).resolve().parents[3])
    return run_compiler([*command, *flags, f"-arch={architecture}", f"-I{include}"], {"PYTHONPATH": packages})
