"""`make bench`: every benchmark in turn, each printing its ratios; what was measured goes to bench-results/ as JSON."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path

#: Each module has main() -> dict of what it measured, and prints it as it goes.
BENCHMARKS = (
    *(
        "commands",
        "looks",
        "large_logs",
        "slurms",
        "triage",
        "perms",
        "hub",
        "upkeep",
        "startup",
        "trainer_throughput",
        "bf16",
        "reading",
        "ranks",
        "save",
        "checkpoint_load",
        "conversion",
        "memory",
        "loss",
        "spike_guard",
        "data_index",
        "prepare",
    ),
    "stores",
    "desk",
    "simulate",
)


def main(names: list[str]) -> int:
    """Run the named benchmarks (default: all). Returns 2 for an unknown name."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    results: dict[str, object] = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
    }
    for name in names or BENCHMARKS:
        print(f"== {name}", flush=True)
        results[name] = importlib.import_module(f"benchmarks.{name}").main()
    folder = Path("bench-results")
    folder.mkdir(exist_ok=True)
    target = folder / time.strftime("%Y%m%d-%H%M%S.json")
    target.write_text(json.dumps(results, indent=2, default=str) + "\n")
    print(f"written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
