"""Three months of a training on a shared cluster, on paper: what our decisions are worth beside simpler ways to run it.

A discrete-event simulation (SimPy) in which nodes die, slow down and hang at published rates, and the product's own
functions decide: none of them is written again here. `python -m benchmarks.simulate` prints the comparison at one
size, `--docs` writes docs/simulation.md and its picture.
"""

from __future__ import annotations

from typing import Any


def main() -> dict[str, Any]:
    """A short comparison at 1,000 nodes, for `make bench`: what trained, by ways to run it."""
    from benchmarks.simulate.experiments import Plan, compare
    from benchmarks.simulate.policies import WAYS
    from benchmarks.simulate.setting import set_aside
    from benchmarks.simulate.words import table

    found = compare([Plan(set_aside(1000), way, seed) for way in WAYS for seed in range(3)])
    print(table(found))
    return {name: summary.goodput.middle for name, summary in found.items()}
