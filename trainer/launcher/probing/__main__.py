r"""The program that tests a node, started once on each by srun.

    python -u -m trainer.launcher.probing node --effort quick --folder RUN_FOLDER [--turn NAME]
    python -u -m trainer.launcher.probing network --effort quick --nodes N --address A --port P [--ranks-per-node G]

Print lines of `trainer.formats.attempt.node_samples`. The second waits for all nodes that passed the first.
"""

from __future__ import annotations

import argparse
import functools
import os
import socket
import sys
import time
from pathlib import Path

from trainer.formats.attempt.node_samples import DONE, EFFORTS, NETWORK, PROGRAM, Effort, ProbeLine
from trainer.launcher.probing import machine, memory, network, parts, products
from trainer.launcher.probing.parts import Part, run_part, run_together, say


def main() -> int:
    """Run the parts that the command line names."""
    given = _parser().parse_args()
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    effort = EFFORTS[given.effort]
    if given.what == "node":
        _test_node(node, effort, given.folder, given.turn)
    else:
        _test_network(node, effort, given)
    say(ProbeLine(node=node, part=PROGRAM, what=DONE))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trainer.launcher.probing", allow_abbrev=False, description="Test this node.")
    passes = parser.add_subparsers(dest="what", required=True)
    alone, together = passes.add_parser("node"), passes.add_parser("network")
    for one in (alone, together):
        one.add_argument("--effort", choices=sorted(EFFORTS), required=True)
    alone.add_argument("--folder", type=Path, required=True, help="the run's, or another that all nodes write to")
    alone.add_argument("--turn", default="", help="name by which nodes that are one host take turns")
    together.add_argument("--nodes", type=int, required=True)
    together.add_argument("--address", required=True)
    together.add_argument("--port", type=int, required=True)
    together.add_argument("--ranks-per-node", type=int, default=1, help="GPUs of each node")
    return parser


def _test_node(node: str, effort: Effort, folder: Path, turn: str) -> None:
    deadline = time.monotonic() + effort.nodes_s

    def part(name: str, measure: functools.partial[None], in_turn: bool = False) -> None:
        left_s = deadline - time.monotonic()
        run_part(node, Part(name, min(effort.part_s, left_s), measure, in_turn), turn, max(0.0, left_s - effort.part_s))

    part("machine", functools.partial(machine.describe))
    part("run_folder", functools.partial(parts.measure_run_folder, folder=folder, node=node))
    part("shm", functools.partial(parts.measure_shm))
    part("disk", functools.partial(parts.measure_disk, effort=effort), in_turn=True)
    part("memory", functools.partial(memory.measure, effort=effort), in_turn=True)
    part("products", functools.partial(products.measure, effort=effort), in_turn=True)
    if Path("/dev/nvidiactl").exists():
        part("gpus", functools.partial(machine.describe_gpus))
        part("gpu_products", functools.partial(products.measure_gpus, effort=effort))


def _test_network(node: str, effort: Effort, given: argparse.Namespace) -> None:
    on_gpus = Path("/dev/nvidiactl").exists()
    ranks = given.ranks_per_node if on_gpus else 1
    node_rank = int(os.environ.get("SLURM_PROCID", "0"))
    parts = [
        Part(
            NETWORK,
            effort.network_s,
            functools.partial(
                network.measure,
                meeting=network.Meeting(given.address, given.port, given.nodes, node_rank, ranks, local_rank),
                effort=effort,
            ),
        )
        for local_rank in range(ranks)
    ]
    run_together(node, parts)


if __name__ == "__main__":
    sys.exit(main())
