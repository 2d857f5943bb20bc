"""Answers of many nodes for tests, with assumed noise."""

from __future__ import annotations

import random
from collections.abc import Mapping

from opsctl.diagnosis.probe.launch import Answer, sorted_answers
from trainer.formats.attempt.node_samples import BEGAN, DONE, ENDED, PROGRAM, ProbeLine
from trainer.launcher.probing.network import partner

#: Standard deviations of the logarithm.
NOISE = {"fp32_gflops": 0.03, "copy_gbs": 0.05, "link_gbs": 0.12, "link_latency_us": 0.2, "write_mbs": 0.3}
USUAL = {
    ("products", "fp32_gflops"): 2400.0,
    ("memory", "copy_gbs"): 180.0,
    ("disk", "write_mbs"): 900.0,
    ("disk", "read_mbs"): 2500.0,
    ("run_folder", "write_ms"): 3.0,
}
FLAT = {
    ("machine", "cores"): 40.0,
    ("machine", "cores_ours"): 40.0,
    ("machine", "memory_mib"): 192_000.0,
    ("shm", "free_gib"): 90.0,
    ("shm", "wrong_blocks"): 0.0,
    ("disk", "free_gib"): 800.0,
    ("disk", "wrong_blocks"): 0.0,
    ("run_folder", "wrong_blocks"): 0.0,
    ("run_folder", "clock_offset_s"): 0.0,
    ("products", "tried"): 4.0,
    ("products", "wrong"): 0.0,
    ("products", "sum"): 26_779_639.1,
}
TEXTS = {"cpu": "Xeon 6248", "kernel": "4.18.0", "python": "3.11.2", "torch": "2.13.0", "opsctl": "0.1.0"}


def names(count: int) -> list[str]:
    return [f"jean-zay-iam{number:02}" for number in range(1, count + 1)]


def lines_of(
    node: str,
    place: int,
    count: int,
    chance: random.Random,
    numbers: Mapping[tuple[str, str], float] | None = None,
    texts: Mapping[str, str] | None = None,
) -> list[ProbeLine]:
    """Return all lines of a healthy node, with `numbers` and `texts` in place of its own."""
    own = dict(numbers or {})
    said: list[ProbeLine] = []
    values = {**FLAT, **{key: value * _noise(key[1], chance) for key, value in USUAL.items()}, **own}
    for what, text in {**TEXTS, **(texts or {})}.items():
        said.append(ProbeLine(node=node, part="machine", what=what, text=text))
    for (part, what), value in values.items():
        if part != "network":
            said.append(ProbeLine(node=node, part=part, what=what, number=value))
    said.append(ProbeLine(node=node, part="network", what="rank", number=place))
    for turn in range(count - 1 + count % 2):
        other = partner(place, turn, count)
        if other is not None:
            said += _link(node, other, own, chance)
    for part in sorted({line.part for line in said}):
        said.append(ProbeLine(node=node, part=part, what=BEGAN))
        said.append(ProbeLine(node=node, part=part, what=ENDED))
    return [*said, ProbeLine(node=node, part=PROGRAM, what=DONE)]


def _link(node: str, other: int, own: Mapping[tuple[str, str], float], chance: random.Random) -> list[ProbeLine]:
    usual = {"link_gbs": 11.0, "link_latency_us": 30.0, "link_wrong": 0.0}
    return [
        ProbeLine(
            node=node,
            part="network",
            what=what,
            number=own.get(("network", what), value) * _noise(what, chance),
            of=other,
        )
        for what, value in usual.items()
    ]


def _noise(what: str, chance: random.Random) -> float:
    return chance.lognormvariate(0.0, NOISE.get(what, 0.05))


def answers(
    count: int,
    seed: int = 1,
    numbers: Mapping[int, Mapping[tuple[str, str], float]] | None = None,
    texts: Mapping[int, Mapping[str, str]] | None = None,
    lost: Mapping[str, str] | None = None,
    silent: frozenset[int] = frozenset(),
) -> list[Answer]:
    """Return the answers of `count` nodes; problems are given by a node's place, from 0."""
    chance, nodes = random.Random(seed), names(count)
    said = [
        line
        for place, node in enumerate(nodes)
        for line in lines_of(node, place, count, chance, (numbers or {}).get(place), (texts or {}).get(place))
        if place not in silent
    ]
    return sorted_answers(nodes, said, lost or {})
