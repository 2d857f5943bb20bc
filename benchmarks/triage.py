"""`opsctl triage --log` on a gigabyte of a training's log, with the cause in its middle: seconds and memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.looks import met

BYTES, LIMIT_S, LIMIT_MIB = 1 << 30, 10.0, 200
ROUNDS = 3
_CAUSE = "[default3]:[rank11]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB"

#: One triage in a process of its own, as a user types it: cause, seconds, MiB at most.
_TRIAGE = """
import contextlib, io, json, resource, sys, time
from opsctl.cli import main
began, out = time.perf_counter(), io.StringIO()
with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
    main(["triage", "--log", sys.argv[1], "--json"])
taken = time.perf_counter() - began
cause = json.loads(out.getvalue())["triage"]["cause"]
print(json.dumps([cause, taken, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def main() -> dict[str, Any]:
    """Measure, print and return it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        _write(log)
        runs = [_triaged(log) for _ in range(ROUNDS)]
    assert {cause for cause, _, _ in runs} == {"gpu-oom"}, runs
    seconds, mib = median(taken for _, taken, _ in runs), max(most for _, _, most in runs)
    print(f"triage of 1 GiB: {seconds:.1f} s ({met(seconds <= LIMIT_S)}: at most {LIMIT_S:g} s)")
    print(f"  memory: {mib:.0f} MiB ({met(mib <= LIMIT_MIB)}: at most {LIMIT_MIB} MiB)")
    return {"bytes": BYTES, "seconds": seconds, "mib": mib}


def _write(log: Path) -> None:
    """Iterations of 64 ranks, with warnings among them, and the cause where half of it is written."""
    written, iteration, is_told = 0, 0, False
    with log.open("w") as file:
        while written < BYTES:
            iteration += 1
            lines = [
                f"[default{rank % 8}]: iteration {iteration:8}/ 115311 | consumed samples: {iteration * 2048:12} | "
                f"elapsed time per iteration (s): 104.{iteration % 97:02} | "
                f"lm loss: 2.{iteration * 7919 % 999983:06} | "
                f"grad norm: 0.{iteration % 877:03} | number of skipped iterations: 0 | TFLOPs: 149.{rank:02} |"
                for rank in range(64)
            ]
            lines.append(f"[default0]:WARNING:root:shard {iteration} took 1.{iteration % 10} s to read, error rate 0.0")
            if written > BYTES // 2 and not is_told:
                lines.append(_CAUSE)
                is_told = True
            text = "\n".join(lines) + "\n"
            file.write(text)
            # After the cause no one trains: what follows are lost peers.
            written += len(text)
            if is_told:
                text = "".join(f"[rank{rank}]: Connection reset by peer, {iteration}\n" for rank in range(64))
                while written < BYTES:
                    file.write(text)
                    written += len(text)


def _triaged(log: Path) -> tuple[str, float, float]:
    out = subprocess.run(
        [sys.executable, "-c", _TRIAGE, str(log)], stdout=subprocess.PIPE, check=True, timeout=300
    ).stdout
    cause, seconds, mib = json.loads(out)
    return cause, seconds, mib


if __name__ == "__main__":
    main()
