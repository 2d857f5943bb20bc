"""`python -m benchmarks.desk`: any seeds, and what exactly was missed."""

from __future__ import annotations

import argparse

from benchmarks.desk import BENCH_DAYS, BENCH_SEEDS
from benchmarks.desk.table import print_details, print_table
from benchmarks.desk.together import simulate_all


def main() -> None:
    """Simulate the seeds that were asked for and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.desk")
    parser.add_argument("--seeds", default=f"{BENCH_SEEDS[0]}-{BENCH_SEEDS[-1]}", help="FIRST-LAST")
    parser.add_argument("--days", type=float, default=BENCH_DAYS)
    parser.add_argument("--details", action="store_true", help="every miss and every wrong alarm")
    parser.add_argument("--roughness", type=float, default=1.0, help="of all noise, against what is known")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    total, wall_s = simulate_all(range(int(first), int(last or first) + 1), asked.days, asked.roughness)
    print_table(total, wall_s)
    if asked.details:
        print_details(total)


if __name__ == "__main__":
    main()
