"""Judge nodes, and links between them, by their answers. Pure.

A rate is compared among nodes of the same hardware. A slow node is both far off (a ratio) and unlike the others (in
their usual deviations), so that a noisy cluster accuses no node. A node that did not finish in time is slow; one that
reported nothing while others answered is bad. A wrong result is bad by itself. What most nodes have in common blames
none of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from opsctl.diagnosis.probe.launch import Answer
from opsctl.diagnosis.probe.measures import (
    CLOCK_S,
    FAR_BEHIND,
    FEWEST,
    LATE_END,
    LEAST,
    LEFTOVER_MIB,
    MEMORY_SHARE,
    ODDITIES,
    RATES,
    RUN_FOLDER_FAILED,
    SLOW_DEVIATIONS,
    SOFTWARE,
    SUM_TOLERANCE,
    SUSPICIOUS_DEVIATIONS,
    ZEROES,
    Measure,
    deviations,
    minority,
    slowness,
    usual_and_deviation,
)
from opsctl.diagnosis.probe.report import NodeReport, Reason, Standing
from trainer.formats.attempt.node_samples import NETWORK, PROGRAM

BAD, SLOW, SUSPICIOUS = Standing.BAD, Standing.SLOW, Standing.SUSPICIOUS
#: Parts that a training needs; a failure of the others only leaves the node untested.
_NEEDED = frozenset({"run_folder", "shm", "disk", "memory", "products", "gpus", "gpu_products"})
#: Parts that answer at once or hang.
_DEVICES = frozenset({"gpus", "gpu_products"})
#: Parts that use folders: on a single node their failure may be the folder's.
_FOLDERS = frozenset({"run_folder", "shm", "disk"})
#: Errors of missing software, not of the node.
_NOT_INSTALLED = ("ModuleNotFoundError", "ImportError")
#: Measures that blame a node however many nodes have them.
_NEVER_GENERAL = frozenset({"answer", f"answer{LATE_END}", "products.wrong", "gpu_products.wrong"})


@dataclass(frozen=True)
class Expected:
    """The facts about the nodes from other sources."""

    gpus_per_node: int = 0
    memory_mib: Mapping[str, int] | None = None  # node -> Slurm's RealMemory


@dataclass(frozen=True)
class Judgement:
    """The judgement of all nodes."""

    nodes: tuple[NodeReport, ...]
    general: tuple[str, ...]
    not_seen: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


def judge(answers: Sequence[Answer], expected: Expected) -> Judgement:
    """Return the standing of every node."""
    found: dict[str, list[Reason]] = {answer.node: [] for answer in answers}
    for node, reason in (*_alone(answers, expected), *_software(answers), *_among_their_like(answers)):
        found[node].append(reason)
    general = _general(found)
    reports = tuple(_report(answer, found[answer.node], set(general)) for answer in answers)
    off = {node for node, reasons in found.items() if any(one.measure.startswith(f"{NETWORK}.") for one in reasons)}
    links = tuple(slow_links(answers, off))
    return Judgement(reports, tuple(general.values()), tuple(_not_seen(answers, expected)), links)


def _general(found: Mapping[str, Sequence[Reason]]) -> dict[str, str]:
    """Return measure -> words of what most nodes have, or of an equal failure of the run's folder on two nodes."""
    having: dict[str, list[Reason]] = {}
    for reasons in found.values():
        for one in {reason.measure: reason for reason in reasons}.values():
            if one.measure not in _NEVER_GENERAL:
                having.setdefault(one.measure, []).append(one)
    common = {what: them for what, them in having.items() if len(found) > 1 and 2 * len(them) > len(found)}
    if RUN_FOLDER_FAILED not in common:
        alike: dict[str, list[Reason]] = {}
        for one in having.get(RUN_FOLDER_FAILED, []):
            alike.setdefault(_alike_by(one), []).append(one)
        common.update({what: them for what, them in alike.items() if len(them) > 1})
    return {what: f"{len(them)} of {len(found)} nodes: {them[0].words}" for what, them in common.items()}


def _alike_by(reason: Reason) -> str:
    """Return the message without the file, whose name contains the node's."""
    return reason.words.partition(": '")[0]


def _report(answer: Answer, reasons: Sequence[Reason], general: set[str]) -> NodeReport:
    own = [one for one in reasons if not general & {one.measure, _alike_by(one)}]
    own.sort(key=lambda one: -one.standing.rank)
    numbers = {f"{part}.{what}": _worst(what, list(by.values())) for (part, what), by in answer.numbers.items()}
    return NodeReport(
        node=answer.node,
        standing=own[0].standing if own else Standing.FINE,
        hardware=hardware_of(answer),
        reasons=tuple(own),
        numbers={name: value for name, value in sorted(numbers.items()) if math.isfinite(value)},
    )


def _worst(what: str, values: Sequence[float]) -> float:
    known = {rate.what: rate.more_is_better for rate in RATES}
    return min(values) if known.get(what, False) else max(values)


def hardware_of(answer: Answer) -> str:
    """Return the hardware class of a node: processor, and GPU if it has one."""
    parts = (answer.texts.get(("machine", "cpu"), ""), answer.texts.get(("gpus", "name"), ""))
    return ", ".join(filter(None, parts))


Found = Iterator[tuple[str, Reason]]


def _reason(standing: Standing, node: str, measure: str, words: str) -> tuple[str, Reason]:
    return node, Reason(standing, measure, words)


def _alone(answers: Sequence[Answer], expected: Expected) -> Found:
    """Yield the reasons that need no comparison with other nodes."""
    talked = sum(NETWORK in answer.ended for answer in answers)
    needed = _NEEDED | {NETWORK} if 2 * talked > len(answers) else _NEEDED
    needed -= _FOLDERS if len(answers) == 1 else frozenset()
    answered = sum(bool(answer.ended) for answer in answers)
    any_gpu = any(answer.number("machine", "gpu_devices") for answer in answers)
    for answer in answers:
        node = answer.node
        if answer.lost:
            yield _reason(BAD, node, "answer", answer.lost)
        if not answer.ended:
            if not answer.lost:
                yield _unheard(answer, answered, len(answers))
            continue
        for part, why in answer.failed.items():
            fault = BAD if part in needed and not why.startswith(_NOT_INSTALLED) else SUSPICIOUS
            if not answer.lost:
                yield _reason(fault, node, f"{part}.failed", f"{part.replace('_', ' ')}: {why}")
        yield from _late(answer, needed)
        yield from _zeroes(answer)
        yield from _sizes(answer, expected, BAD if len(answers) > 1 else SUSPICIOUS)
        if any_gpu and expected.gpus_per_node:
            yield from _gpus(answer, expected.gpus_per_node)


def _unheard(answer: Answer, answered: int, of: int) -> tuple[str, Reason]:
    """Judge a node that finished no part: bad if it is silent and most answered, slow if it has begun to answer."""
    measure = f"answer{LATE_END}"
    if answer.is_silent and 2 * answered >= of:
        return _reason(BAD, answer.node, measure, f"it reported nothing, while {answered} of {of} nodes answered")
    return _reason(SLOW, answer.node, measure, "it did not answer in time")


def _late(answer: Answer, needed: frozenset[str]) -> Found:
    """Yield the parts that ran out of time, and the node as a whole."""
    parts = [part for part in answer.late if part != PROGRAM]
    for part in parts:
        fault = BAD if part in _DEVICES else SLOW if part in needed else SUSPICIOUS
        yield _reason(fault, answer.node, f"{part}{LATE_END}", f"{part.replace('_', ' ')}: {answer.late[part]}")
    if PROGRAM in answer.late:
        yield _reason(SLOW, answer.node, f"{PROGRAM}{LATE_END}", answer.late[PROGRAM])


def _zeroes(answer: Answer) -> Found:
    for table, fault in ((ZEROES, BAD), (ODDITIES, SUSPICIOUS)):
        for (part, what), words in table.items():
            for of, number in answer.numbers.get((part, what), {}).items():
                if number:
                    tried = answer.numbers.get((part, "tried"), {}).get(of, 0.0)
                    yield _reason(fault, answer.node, f"{part}.{what}", words.format(n=number, of=of, tried=tried))
    wrong = [of for of, number in answer.numbers.get(("network", "link_wrong"), {}).items() if number]
    if wrong:
        yield _reason(BAD, answer.node, "network.link_wrong", f"data from {len(wrong)} other nodes arrived damaged")


def _sizes(answer: Answer, expected: Expected, fault: Standing) -> Found:
    """Compare sizes with Slurm's and the limits. fault: for a size other than Slurm's, whose entry may be wrong."""
    node, memory = answer.node, answer.number("machine", "memory_mib")
    promised = (expected.memory_mib or {}).get(node)
    if memory is not None and promised and memory < MEMORY_SHARE * promised:
        yield _reason(
            fault, node, "machine.memory_mib", f"{memory:,.0f} MiB of memory, but Slurm's RealMemory is {promised:,}"
        )
    for (part, what), (least, words) in LEAST.items():
        there = answer.number(part, what)
        if there is not None and there < least:
            where = answer.texts.get((part, "folder"), "its own disk")
            yield _reason(SUSPICIOUS, node, f"{part}.{what}", words.format(n=there, where=where))
    clock = answer.number("run_folder", "clock_offset_s")
    if clock is not None and abs(clock) > CLOCK_S:
        yield _reason(
            SUSPICIOUS, node, "run_folder.clock_offset_s", f"its clock is {clock:+,.0f} s off the file server's clock"
        )


def _gpus(answer: Answer, wanted: int) -> Found:
    there = answer.number("gpus", "count")
    there = answer.number("machine", "gpu_devices") if there is None else there
    if there is not None and there < wanted:
        yield _reason(BAD, answer.node, "gpus.count", f"{there:g} GPUs, but the run needs {wanted} on each node")
    for of, used in answer.numbers.get(("gpus", "memory_used_mib"), {}).items():
        if used > LEFTOVER_MIB:
            words = f"{used:,.0f} MiB of GPU {of} are in use before this job starts: look for leftover processes"
            yield _reason(BAD, answer.node, "gpus.memory_used_mib", words)
    most = answer.numbers.get(("gpus", "pcie_width_most"), {})
    for of, width in answer.numbers.get(("gpus", "pcie_width"), {}).items():
        if width < most.get(of, width):
            yield _reason(
                SUSPICIOUS, answer.node, "gpus.pcie_width", f"GPU {of} has {width:g} of its {most[of]:g} PCIe lanes"
            )


def _software(answers: Sequence[Answer]) -> Found:
    """Yield versions that differ from the majority's."""
    for what, words, is_needed in SOFTWARE:
        texts = {one.node: one.texts.get(("machine", what), "none") for one in answers if "machine" in one.ended}
        most, others = minority(texts)
        for node, text in others.items():
            fault = BAD if is_needed else SUSPICIOUS
            yield _reason(fault, node, f"machine.{what}", f"{words} {text}, but most nodes have {most}")


def _among_their_like(answers: Sequence[Answer]) -> Found:
    classes: dict[str, list[Answer]] = {}
    for answer in answers:
        if answer.ended:
            classes.setdefault(hardware_of(answer), []).append(answer)
    for alike in classes.values():
        for measure in RATES:
            yield from _rates(measure, alike)
        yield from _exact(alike)


def _rates(measure: Measure, alike: Sequence[Answer]) -> Found:
    values = {one.node: _of_node(measure, one) for one in alike}
    known = {node: found for node, found in values.items() if found is not None}
    if len(known) < FEWEST:
        return
    usual, deviation = usual_and_deviation([value for value, _ in known.values()])
    slowness_of = {node: slowness(value, usual, measure.more_is_better) for node, (value, _) in known.items()}
    off = {node: deviations(slow, deviation) for node, slow in slowness_of.items()}
    far = {
        node
        for node, slow in slowness_of.items()
        if measure.slow is not None
        and slow >= measure.slow
        and (off[node] >= SLOW_DEVIATIONS or _is_far_behind(node, slowness_of))
    }
    # If all links of several nodes are slow, these may share a rack whose switch is slow.
    fault_of_far = SUSPICIOUS if measure.of == "link" and len(far) > 1 else SLOW
    for node, (value, of) in known.items():
        slow = slowness_of[node]
        if node not in far and not (slow >= measure.suspicious and off[node] >= SUSPICIOUS_DEVIATIONS):
            continue
        fault = fault_of_far if node in far else SUSPICIOUS
        which = f" of GPU {of}" if measure.of == "GPU" and of is not None else ""
        words = f"{measure.words}{which}: {value:.3g} {measure.unit}, but the others have {usual:.3g}"
        yield _reason(fault, node, f"{measure.part}.{measure.what}", f"{words} ({slow:.1f} times slower)")


def _is_far_behind(node: str, slowness_of: Mapping[str, float]) -> bool:
    """Return True if it is FAR_BEHIND times slower than every other: with few nodes, deviations mean little."""
    return slowness_of[node] >= FAR_BEHIND * max(slow for other, slow in slowness_of.items() if other != node)


def _of_node(measure: Measure, answer: Answer) -> tuple[float, int | None] | None:
    """Return (the node's number, its GPU): of the slowest GPU, or the upper quartile of its links."""
    values = answer.numbers.get((measure.part, measure.what))
    if not values:
        return None
    if measure.of == "link":
        # Not the median: most links of nodes in a small rack lead out of it. A slow node has no fast link.
        best_first = sorted(values.values(), reverse=measure.more_is_better)
        return best_first[(len(best_first) - 1) // 4], None
    worst = min if measure.more_is_better else max
    return worst((number, of if of is not None else -1) for of, number in values.items())


def _exact(alike: Sequence[Answer]) -> Found:
    """Yield sums and sizes that differ between equal machines."""
    sums = {one.node: total for one in alike if (total := one.number("products", "sum")) is not None}
    if len(sums) >= FEWEST:
        usual, _ = usual_and_deviation(list(sums.values()))
        for node, total in sums.items():
            if not abs(total - usual) <= SUM_TOLERANCE * usual:
                words = f"computes differently: a sum of products is {total:.9g}, but the others have {usual:.9g}"
                yield _reason(BAD, node, "products.sum", words)
    for what, words in (("memory_mib", "MiB of memory"), ("cores", "cores"), ("cores_ours", "cores of this job")):
        sizes = {one.node: size for one in alike if (size := one.number("machine", what)) is not None}
        usual, _ = usual_and_deviation(list(sizes.values())) if len(sizes) >= FEWEST else (0.0, 0.0)
        for node, size in sizes.items():
            if size < MEMORY_SHARE * usual:
                yield _reason(
                    SUSPICIOUS, node, f"machine.{what}", f"{size:,.0f} {words}, but the others have {usual:,.0f}"
                )


def _not_seen(answers: Sequence[Answer], expected: Expected) -> Iterator[str]:
    if expected.gpus_per_node and not any(answer.number("machine", "gpu_devices") for answer in answers):
        yield "no GPU was found on any node, so none was tested"
    of_each = Counter(hardware_of(one) for one in answers if one.ended)
    few = [f"{one.node} ({hardware_of(one)})" for one in answers if one.ended and of_each[hardware_of(one)] < FEWEST]
    if len(answers) >= FEWEST and few:
        yield f"too few nodes of the same kind to compare: {', '.join(few)}"
    if len(answers) > 1 and not any(NETWORK in answer.ended for answer in answers):
        whys = (answer.failed.get(NETWORK) or answer.late.get(NETWORK) for answer in answers)
        why = next(filter(None, whys), "no two nodes answered")
        yield f"the network was not tested: {why}"


def slow_links(answers: Sequence[Answer], off: Set[str]) -> Iterator[str]:
    """Yield a sentence for each link that both of its ends measured as slow; none of a node that is `off`.

    A cable, a port or a switch of either end may be the cause, so no node is blamed. If more than a third of all
    links are slow, they connect racks and get one sentence.
    """
    at_place = {int(place): one.node for one in answers if (place := one.number(NETWORK, "rank")) is not None}
    for measure in RATES:
        if measure.of == "link":
            yield from _slow_by(measure, answers, at_place, off)


def _slow_by(measure: Measure, answers: Sequence[Answer], at_place: dict[int, str], off: Set[str]) -> Iterator[str]:
    links: dict[tuple[str, str], float] = {}
    better = max if measure.more_is_better else min
    for one in answers:
        for place, value in one.numbers.get((measure.part, measure.what), {}).items():
            if place is not None and (other := at_place.get(place)):
                ends = (min(one.node, other), max(one.node, other))
                links[ends] = better(links.get(ends, value), value)
    if measure.slow is None or len(links) < FEWEST:
        return
    usual, deviation = usual_and_deviation(list(links.values()))
    slow_of = {ends: slowness(value, usual, measure.more_is_better) for ends, value in links.items()}
    slow = {ends: by for ends, by in slow_of.items() if by >= measure.slow and off.isdisjoint(ends)}
    far = sorted(ends for ends, by in slow.items() if deviations(by, deviation) >= SUSPICIOUS_DEVIATIONS)

    def words(ends: tuple[str, str]) -> str:
        numbers = f"{links[ends]:.3g} {measure.unit}, but links usually have {usual:.3g}"
        return f"{measure.words}: {numbers} ({slow_of[ends]:.1f} times slower)"

    if far and 3 * len(slow) > len(links):
        typical = sorted(slow, key=slow.__getitem__)[len(slow) // 2]
        yield f"{len(slow)} of {len(links)} links are slow, as between racks, {words(typical)}"
        return
    for first, second in far:
        yield f"the link between {first} and {second} is slow, {words((first, second))}"
