"""Building artifacts into the cache. Only `python -m trainer.kernels.native build` and tests come here."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from trainer.kernels.native.artifacts import Artifact, csrc_folder, flags_of, torch_version
from trainer.kernels.native.cache import Built, building, find_by, put
from trainer.kernels.native.libraries import library_file
from trainer.kernels.native.toolchains import CompilerError, CudaCompiler, Nvcc, cuda_compiler, host_compiler

_COMPILE_S = 900
Given = TypeVar("Given")
Made = TypeVar("Made")


class Compilers:
    """Compilers under way, each the head of a process group of its own."""

    def __init__(self, limit_s: float = _COMPILE_S) -> None:
        self._limit_s = limit_s
        self._running: set[subprocess.Popen[str]] = set()
        self._is_ended = False

    def each(self, jobs: int, make: Callable[[Given], Made], of: Iterable[Given]) -> list[Made]:
        """Return the results of `make` for each, `jobs` at once. A failure or an interruption ends the others too."""
        with ThreadPoolExecutor(jobs) as pool:
            try:
                return list(pool.map(make, of))
            except BaseException:
                self._end()
                raise

    def run(self, command: list[str], more: dict[str, str] | None = None) -> str:
        """Return a compiler's output. more: additional environment. Raises CompilerError (its first error), OSError."""
        in_english = {**os.environ, **(more or {}), "LC_ALL": "C"}
        if self._is_ended:
            raise CompilerError(f"{command[-1]}: not compiled, as another file failed")
        pipe = subprocess.PIPE
        # A group of its own: a compiler is a driver of others, which would outlive it.
        started = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, env=in_english, start_new_session=True, errors="replace"
        )
        self._running.add(started)
        try:
            said_out, said = started.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            raise CompilerError(f"{command[-1]}: {command[0]} took more than {self._limit_s:g} s") from None
        finally:
            self._running.discard(started)
            _end_now(started)
        said += said_out
        if started.returncode:
            first = re.search(r"^.*\berror\b.*$", said, re.MULTILINE | re.IGNORECASE)
            ended = f"{' '.join(command)} ended with {started.returncode}: {said[-500:]}"
            raise CompilerError(first[0] if first else ended)
        return said

    def _end(self) -> None:
        self._is_ended = True
        for one in tuple(self._running):
            _kill(one)


def _end_now(started: subprocess.Popen[str]) -> None:
    if started.returncode is None:
        _kill(started)
        started.communicate()


def _kill(started: subprocess.Popen[str]) -> None:
    """With its group. Once it has been waited for its number may be another's."""
    if started.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)


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


#: How long another process may take to build the same before we build beside it.
_WAIT_S = 900.0
#: What a shell reads inside quotation marks: nvcc hands its commands to one.
_OF_A_SHELL = re.compile(r"""[`$"\\\n]""")


def build(artifact: Artifact, jobs: int = 1, say: Callable[[str], None] = lambda _: None) -> Built:
    """Return the artifact from the cache, or build it with `jobs` compilers at once. Raises CompilerError, OSError."""
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
