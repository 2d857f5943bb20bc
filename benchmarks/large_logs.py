"""Measure large logs: `opsctl status` of a run with 5 GB of log, and the page of 120,000 lines."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.commands import alternate, make_run, opsctl
from benchmarks.looks import desk, met

LOG_BYTES = 5 << 30
STATUS_LIMIT_S = 0.3
PAGE_LINES, PAGE_LIMIT_S = 120_000, 5.0
#: Iterations in a log, and how often what other programs print stands between two stretches of them.
_STRETCH, _NOISE_BYTES = 1000, 64 << 20

_READ = """
import pathlib, sys
from opsctl.run.logs.index import look
from opsctl.run.config.paths import RunPaths
look(RunPaths(pathlib.Path(sys.argv[1])), 600)
"""


def main() -> dict[str, Any]:
    """Measure, print and return both. A stand-in is Slurm: what the controller takes is not ours to measure."""
    with desk() as (folder, environment):
        return _status(folder, environment) | _page(folder, environment)


def _status(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Measure the large log next to one of 1,000 lines, in turn; the large one has been read before."""
    small, large = folder / "small", folder / "large"
    make_run(small, _STRETCH)
    make_run(large, _STRETCH)
    path = large / "output" / "logs" / "main_log.txt"
    lines = path.read_bytes()
    noise = b"[default3]: a line of another program, as there are many in the log of a long training\n"
    with path.open("ab") as log:
        while log.tell() < LOG_BYTES:
            log.write(noise * (_NOISE_BYTES // len(noise)))
            log.write(lines)
    started = time.perf_counter()
    # What a screen that stays, or some fifty looks of a tenth of a second, come to.
    subprocess.run([sys.executable, "-c", _READ, large / "output"], env=environment, check=True, timeout=600)
    first_s = time.perf_counter() - started
    command = [*opsctl(), "status"]
    chosen = [[*command, str(run / "run.toml")] for run in (small, large)]
    small_s, large_s = alternate(chosen, environment, folder, may_fail=True)
    print(
        f"opsctl status of {LOG_BYTES >> 30} GiB of log: {large_s * 1e3:.0f} ms, {large_s / small_s:.2f}x of that of"
        f" {len(lines) >> 10} KiB ({small_s * 1e3:.0f} ms), read in {first_s:.1f} s before;"
        f" goal <= {STATUS_LIMIT_S * 1e3:.0f} ms: {met(large_s <= STATUS_LIMIT_S)}"
    )
    path.unlink()
    return {
        "large_log_status_s": large_s,
        "large_log_status_ratio": large_s / small_s,
        "large_log_first_s": first_s,
        "large_log_status_limit_s": STATUS_LIMIT_S,
    }


def _page(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    run = folder / "long"
    make_run(run, PAGE_LINES)
    words = ["report", "--log", str(run / "output" / "logs" / "main_log.txt"), "--output", str(folder / "page.html")]
    (page_s,) = alternate([[*opsctl(), *words]], environment, folder, rounds=3)
    size = (folder / "page.html").stat().st_size
    print(
        f"opsctl report of {PAGE_LINES:,} lines: {page_s:.1f} s, {size / 1e6:.2f} MB;"
        f" goal <= {PAGE_LIMIT_S:.0f} s: {met(page_s <= PAGE_LIMIT_S)}"
    )
    return {"page_s": page_s, "page_bytes": size, "page_limit_s": PAGE_LIMIT_S}


if __name__ == "__main__":
    main()
