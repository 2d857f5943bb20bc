"""Registers, shared memory and spills of every kernel and architecture: `python -m benchmarks.kernel_resources`.

Written to benchmarks/kernel-resources.json, which a test holds to what compiles now. What was compiled is kept for
later in a folder of this user's, by its sources and compiler.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainer.core.files import write_atomically
from trainer.kernels.native.artifacts import ARCHITECTURES, CUDA_FLAGS, csrc_folder, kernel_sources, with_included
from trainer.kernels.native.building import compile_cubin, resources_in
from trainer.kernels.native.toolchains import CompilerError, CudaCompiler, cuda_compiler

RECORD = Path(__file__).with_name("kernel-resources.json")
Resources = dict[str, dict[str, int]]


def compiler_for(architecture: str) -> CudaCompiler | None:
    """Return what compiles for it here, as `opsctl kernels build` chooses it; None: nothing does."""
    try:
        return cuda_compiler(architecture)
    except CompilerError:
        return None


@functools.cache
def compiled(source: Path, architecture: str) -> Resources:
    """kernel -> what it takes (see `trainer.kernels.native.building`). Raises CompilerError."""
    compiler = cuda_compiler(architecture)
    digest = hashlib.sha256(repr((compiler.name, architecture, CUDA_FLAGS)).encode())
    for file in with_included([source]):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    kept = _folder() / f"{source.stem}-{architecture}-{digest.hexdigest()[:20]}.json"
    if kept.exists():
        found: Resources = json.loads(kept.read_text())
        return found
    with tempfile.TemporaryDirectory() as folder:
        said = compile_cubin(compiler, source, architecture, CUDA_FLAGS, Path(folder) / "kernels.cubin")
    found = resources_in(said)
    write_atomically(kept, json.dumps(found))
    return found


def all_compiled(architectures: tuple[str, ...] = ARCHITECTURES) -> dict[tuple[Path, str], Resources | CompilerError]:
    """(source, architecture) -> its kernels' resources, or why it does not compile; one at a time for each CPU."""
    jobs = [(source, one) for one in architectures if compiler_for(one) for source in kernel_sources(csrc_folder())]

    def outcome(job: tuple[Path, str]) -> Resources | CompilerError:
        try:
            return compiled(*job)
        except CompilerError as error:
            return error

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip(jobs, pool.map(outcome, jobs), strict=True))


def record(found: dict[tuple[Path, str], Resources]) -> dict[str, Any]:
    """As it is written: the compiler of each architecture, and each kernel's resources on each."""
    kernels: dict[str, dict[str, dict[str, int]]] = {}
    for (_, architecture), resources in found.items():
        for kernel, used in resources.items():
            kernels.setdefault(kernel, {})[architecture] = used
    compilers = {one: cuda_compiler(one).name for one in sorted({architecture for _, architecture in found})}
    return {"compilers": compilers, "kernels": kernels}


def text_of(recorded: dict[str, Any]) -> str:
    """A line for each kernel on each architecture, so that a change is a line of a difference."""
    lines = [
        f"    {json.dumps(kernel)}: {{\n"
        + ",\n".join(f"      {json.dumps(one)}: {json.dumps(used)}" for one, used in sorted(by_architecture.items()))
        + "\n    }"
        for kernel, by_architecture in sorted(recorded["kernels"].items())
    ]
    compilers = json.dumps(recorded["compilers"], sort_keys=True)
    return f'{{\n  "compilers": {compilers},\n  "kernels": {{\n' + ",\n".join(lines) + "\n  }\n}\n"


def main() -> int:
    """Write the record. 1 where a source does not compile, or no compiler is there for an architecture."""
    missing = [one for one in ARCHITECTURES if compiler_for(one) is None]
    found = all_compiled()
    refused = [str(one) for one in found.values() if isinstance(one, CompilerError)]
    if missing or refused:
        print(*refused, *(f"no compiler for {one} here" for one in missing), sep="\n", file=sys.stderr)
        return 1
    recorded = record({job: one for job, one in found.items() if not isinstance(one, CompilerError)})
    write_atomically(RECORD, text_of(recorded))
    print(f"{len(recorded['kernels'])} kernels on {', '.join(recorded['compilers'])}: {RECORD}")
    return 0


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"opsctl-compiled-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.geteuid():
        raise RuntimeError(f"{folder} belongs to another user: remove it")
    return folder


if __name__ == "__main__":
    sys.exit(main())
