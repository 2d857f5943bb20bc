"""Measure large logs: `opsctl status` of a run with 5 GB of log, and the page of long logs."""

from __future__ import annotations

import resource
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.commands import alternate, make_run, opsctl
from benchmarks.looks import desk, met

LOG_BYTES = 5 << 30
STATUS_LIMIT_S = 0.3
PAGE_LINES, PAGE_LIMIT_S = 120_000, 5.0
LAYOUT_LINES, LAYOUT_LIMIT_S, LAYOUT_LIMIT_MIB = 5_000_000, 60.0, 500
_MEGATRON = (
    " iteration {0:8d}/ 9000000 | consumed samples: {0:12d} | elapsed time per iteration (s): 1.00 |"
    " learning rate: 1.000E-04 | global batch size:  2048 | lm loss: {1:.6E} | grad norm: 0.300 |\n"
)
#: The lines of one step in each layout: its number, the loss, the time.
_LAYOUTS = {
    "timers": f"{_MEGATRON}time (ms) | forward: 1000.11 | backward: 2000.11 | optimizer: 40.12\n",
    "torchtitan": (
        "[rank0]:[titan] {2:%Y-%m-%d %H:%M:%S},123 - root - INFO - \x1b[31mstep: {0:2}  \x1b[32mloss: {1:7.4f}"
        "  \x1b[34mtps: 6,000  \x1b[36mtflops: 0.43  \x1b[35mmfu: 0.14%\x1b[39m\n"
    ),
    "transformers": (
        "{{'loss': {1:.4f}, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}}\n"
        "  0%|          | {0}/9000000 [00:19<7:40:48, 18.09it/s]\n" + _MEGATRON
    ),
}
#: Iterations in a log, and how often what other programs print stands between two stretches of them.
_STRETCH, _NOISE_BYTES = 1000, 64 << 20


def main() -> dict[str, Any]:
    """Measure, print and return both. A stand-in is Slurm: what the controller takes is not ours to measure."""
    with desk() as (folder, environment):
        return _status(folder, environment) | _page(folder, environment) | _layouts(folder, environment)


def _status(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Measure the large log next to one of 1,000 lines, in turn."""
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
    command = [*opsctl(), "status"]
    chosen = [[*command, str(run / "run.toml")] for run in (small, large)]
    small_s, large_s = alternate(chosen, environment, folder, may_fail=True)
    print(
        f"opsctl status of {LOG_BYTES >> 30} GiB of log: {large_s * 1e3:.0f} ms, {large_s / small_s:.2f}x of that of"
        f" {len(lines) >> 10} KiB ({small_s * 1e3:.0f} ms);"
        f" goal <= {STATUS_LIMIT_S * 1e3:.0f} ms: {met(large_s <= STATUS_LIMIT_S)}"
    )
    path.unlink()
    return {
        "large_log_status_s": large_s,
        "large_log_status_ratio": large_s / small_s,
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


def _layouts(folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Measure the page of `LAYOUT_LINES` lines of each layout: CPU seconds, of which a busy machine adds few."""
    found: dict[str, Any] = {"layout_page_limit_s": LAYOUT_LIMIT_S, "layout_page_limit_mib": LAYOUT_LIMIT_MIB}
    for name, layout in _LAYOUTS.items():
        log = folder / f"{name}.txt"
        at, each = datetime(2026, 1, 1), layout.count("\n")  # noqa: DTZ001 - as the program prints it
        with log.open("w") as file:
            for step in range(1, LAYOUT_LINES // each + 1):
                file.write(layout.format(step, 2 + 8 / step, at + timedelta(seconds=step)))
        words = ["report", "--log", str(log), "--output", str(folder / "page.html")]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*opsctl(), *words], env=environment, check=True, timeout=900)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s, most_mib = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss / 1024
        log.unlink()
        print(
            f"opsctl report of {LAYOUT_LINES:,} lines of {name}: {cpu_s:.0f} s of CPU, at most {most_mib:.0f} MiB;"
            f" goal <= {LAYOUT_LIMIT_S:.0f} s, {LAYOUT_LIMIT_MIB} MiB:"
            f" {met(cpu_s <= LAYOUT_LIMIT_S and most_mib <= LAYOUT_LIMIT_MIB)}"
        )
        found |= {f"layout_{name}_page_s": cpu_s, f"layout_{name}_page_mib": most_mib}
    return found


if __name__ == "__main__":
    main()
