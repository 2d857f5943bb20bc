"""Building artifacts into the cache. Only `python -m trainer.kernels.native build` and tests come here."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.kernels.native.artifacts import Artifact, flags_of, torch_version
from trainer.kernels.native.cache import Built, building, find_by, put
from trainer.kernels.native.compiling import Compilers
from trainer.kernels.native.libraries import library_file
from trainer.kernels.native.resources import resources_in
from trainer.kernels.native.sources import csrc_folder
from trainer.kernels.native.toolchains import CompilerError, CudaCompiler, Nvcc, cuda_compiler, host_compiler

#: How long another process may take to build the same before we build beside it.
_WAIT_S = 900.0
#: What a shell reads inside quotation marks: nvcc hands its commands to one.
_OF_A_SHELL = re.compile(r"""[`$"\\\n]""")


def build(artifact: Artifact, jobs: int = 1, say: Callable[[str], None] = lambda _: None) -> Built:
    """What is in the cache already, or built now by `jobs` compilers at once. Raises CompilerError, OSError."""
    by = _compiler_for(artifact)
    there = find_by(artifact, by)
    if there:
        return there
    with building(artifact, 0) as has_lock:
        if has_lock:
            return _built_now(artifact, by, jobs)
    say(f"{artifact.name}: another process is building it; waiting")
    with building(artifact, _WAIT_S):
        return find_by(artifact, by) or _built_now(artifact, by, jobs)


def _built_now(artifact: Artifact, by: str, jobs: int) -> Built:
    def make(folder: Path) -> dict[str, dict[str, Any]]:
        return _make_cubins(artifact, folder, jobs) if artifact.is_cuda else _make_library(artifact, folder, jobs)

    return put(artifact, by, torch_version(), make)


def _compiler_for(artifact: Artifact) -> str:
    if artifact.is_cuda:
        return cuda_compiler(artifact.target).name
    found = host_compiler()
    if found is None:
        raise CompilerError("no C++ compiler here: install g++ (Debian: apt-get install g++)")
    if "-fopenmp" in artifact.flags and not found.has_openmp:
        raise CompilerError(f"{found.path} is not GCC, whose OpenMP is the one of torch's threads: install g++")
    return found.version


def _make_library(artifact: Artifact, folder: Path, jobs: int) -> dict[str, dict[str, Any]]:
    found = host_compiler()
    assert found, "asked before"
    library = artifact.name.partition("-")[0]
    compilers = Compilers()

    def compiled(source: Path) -> str:
        target = str(folder / f"{source.stem}.o")
        compilers.run([found.path, *artifact.flags, *flags_of(source), "-c", "-o", target, str(source)])
        return target

    objects = compilers.each(jobs, compiled, artifact.sources)
    # The compiler's own run-time inside: nodes may have an older one than the machine that builds.
    link = ["-shared", "-static-libstdc++", "-static-libgcc", "-o", str(folder / library_file(library))]
    compilers.run([found.path, *artifact.flags, *link, *objects])
    for one in objects:
        Path(one).unlink()
    return {}


def _make_cubins(artifact: Artifact, folder: Path, jobs: int) -> dict[str, dict[str, Any]]:
    compiler = cuda_compiler(artifact.target)
    compilers = Compilers()

    def compiled(source: Path) -> dict[str, dict[str, Any]]:
        cubin = folder / f"{source.stem}.cubin"
        said = compile_cubin(compiler, source, artifact.target, artifact.flags, cubin, compilers)
        return {kernel: {"file": cubin.name, **used} for kernel, used in resources_in(said).items()}

    kernels: dict[str, dict[str, Any]] = {}
    for found in compilers.each(jobs, compiled, artifact.sources):
        kernels |= found
    return kernels


def compile_cubin(
    compiler: CudaCompiler,
    source: Path,
    architecture: str,
    flags: tuple[str, ...],
    cubin: Path,
    compilers: Compilers | None = None,
) -> str:
    """Compile one `.cu` file; what the assembler says of each kernel's registers. Raises CompilerError.

    compilers: those that this one is to end with.
    """
    include = csrc_folder() / "cuda"
    run = (compilers or Compilers()).run
    if isinstance(compiler, Nvcc):
        for path in (include, source, cubin):
            if _OF_A_SHELL.search(str(path)):
                raise CompilerError(
                    f"nvcc has a shell read {str(path)!r}, which has a character of the shell's: rename"
                )
        command = [compiler.path, *flags, f"-arch={architecture}", "-cubin", "-Xptxas", "-v", f"-I{include}"]
        return run([*command, "-o", str(cubin), str(source)])
    command = [sys.executable, "-m", "trainer.kernels.native.nvrtc", compiler.path, str(cubin), str(source)]
    packages = str(Path(__file__).resolve().parents[3])
    return run([*command, *flags, f"-arch={architecture}", f"-I{include}"], {"PYTHONPATH": packages})
