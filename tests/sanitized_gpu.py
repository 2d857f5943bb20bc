"""`make sanitize-gpu`: the tests of CUDA kernels on a real GPU, under each tool of NVIDIA's compute-sanitizer.

What the emulator cannot show is shown here: a chip's own order of threads and its own memory. The kernels have to be
built for it (`opsctl kernels build --here`).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What a chip can be asked: accesses beside an array, races in shared memory, reads of what no one wrote, barriers.
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TESTS = "tests/unit/trainer/kernels"
#: What compute-sanitizer ends with where a tool has found something; pytest has nothing above 5.
FOUND = 86
_TOOL_S = 3600


def main(tools: Sequence[str] = TOOLS) -> int:
    """0: no tool found anything; 1: one did, or a test failed; 2: it cannot be done here, with the reason."""
    sanitizer = shutil.which("compute-sanitizer") or _of_cuda_home()
    why_not = _why_not(sanitizer)
    if sanitizer is None or why_not:
        print(f"sanitize-gpu: {why_not}", file=sys.stderr)
        return 2
    failed = []
    for tool in tools:
        print(f"sanitize-gpu: {tool}", flush=True)
        try:
            code = subprocess.run(command(sanitizer, tool), cwd=ROOT, timeout=_TOOL_S, check=False).returncode
        except subprocess.TimeoutExpired:
            failed.append(f"{tool} did not end within {_TOOL_S // 60} minutes")
            continue
        if code:
            failed.append(f"{tool} {'found something' if code == FOUND else f'ended with {code}'}")
    if failed:
        print(f"sanitize-gpu: {'; '.join(failed)}: see above", file=sys.stderr)
    return int(bool(failed))


def command(sanitizer: str, tool: str) -> list[str]:
    """Every test of kernels that needs a GPU, under one tool; torch's own kernels are not looked at."""
    how = ["--tool", tool, "--error-exitcode", str(FOUND), "--kernel-name-exclude", "kns=at::"]
    pytest = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "gpu", TESTS]
    return [sanitizer, *how, sys.executable, *pytest]


def _of_cuda_home() -> str | None:
    found = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "bin" / "compute-sanitizer"
    return str(found) if os.access(found, os.X_OK) else None


def _why_not(sanitizer: str | None) -> str | None:
    if sanitizer is None:
        return "compute-sanitizer is neither on the PATH nor in $CUDA_HOME/bin: it comes with the CUDA toolkit"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no CUDA driver here: {error}"
    return None


if __name__ == "__main__":
    sys.exit(main())
