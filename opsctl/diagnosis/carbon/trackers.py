"""The energy records in a folder, and their sum without double counts.

A tracker gives an amount and a period; its power counts as constant within the period. If several trackers measured the
same thing at the same time, their mean counts. So the sum depends neither on the order of files, nor on the division of
a training into attempts.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import file_problem
from opsctl.core.files.state_files import read_text
from opsctl.core.files.trusted import names_in, opened_folder
from trainer.formats.attempt.carbon import Reading, newest_totals, read

#: More than any training has: 1,000 nodes times 1,000 attempts.
MOST_FILES = 1_000_000


@dataclass(frozen=True)
class Found:
    """The records found, each tracker once."""

    files: int = 0
    readings: tuple[Reading, ...] = ()
    problems: tuple[str, ...] = ()  # one sentence for each unreadable file


def find(folder: Path, most: int = MOST_FILES) -> Found | None:
    """Return the trackers in a folder, each once; None for more than `most` files. Problems hide no others."""
    readings: list[Reading] = []
    problems: list[str] = []
    try:
        with opened_folder(folder, folder) as (fd, _):
            listed = names_in(fd, folder, MOST_FILES)
    except FileNotFoundError:
        return Found()
    except OSError as error:
        return Found(problems=(file_problem(error, folder),))
    names = [name for name in listed if name.endswith(".csv") and not name.startswith(".")]
    if len(names) > most:
        return None
    for name in names:
        try:
            text = read_text(folder, folder / name)
        except OSError as error:
            problems.append(file_problem(error, folder / name))
            continue
        there, wrong = read(str(folder / name), text or "")  # a file that was deleted meanwhile has none
        readings += there
        problems += wrong
    return Found(len(names), tuple(newest_totals(readings)), tuple(problems))


#: The key of a whole node's measurement; other keys are parts of it that do not overlap.
WHOLE = ""


@dataclass(frozen=True)
class Span:
    """A constant power of one part of a node over a period."""

    node: str
    part: str  # cpu, ram, gpu
    key: str  # a job or a device; WHOLE: all of the node
    began_s: float
    ended_s: float
    kwh: float


def counted_once(spans: Iterable[Span]) -> dict[str, float]:
    """Return the kWh of each part over all nodes and times."""
    of_place: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        of_place[span.node, span.part].append(span)
    sums: dict[str, float] = defaultdict(float)
    for (_, part), there in sorted(of_place.items()):
        sums[part] += _of_one_place(there)
    return dict(sums)


def _of_one_place(spans: Sequence[Span]) -> float:
    """Return the kWh of one part of one node. Of periods without length only the largest counts, in addition."""
    moments = [span for span in spans if span.ended_s <= span.began_s]
    lasting = [span for span in spans if span.ended_s > span.began_s]
    edges = sorted({edge for span in lasting for edge in (span.began_s, span.ended_s)})
    begins: dict[float, list[Span]] = defaultdict(list)
    for span in lasting:
        begins[span.began_s].append(span)
    total, active = max((span.kwh for span in moments), default=0.0), list[Span]()
    for began, ended in itertools.pairwise(edges):
        active = [span for span in active if span.ended_s > began] + begins[began]
        total += _kw(active) * (ended - began)
    return total


def _kw(active: Sequence[Span]) -> float:
    """Return the kWh per second: the mean of whole-node trackers, or the sum of the parts if that is more."""
    by_key: dict[str, list[float]] = defaultdict(list)
    for span in active:
        by_key[span.key].append(span.kwh / (span.ended_s - span.began_s))
    means = {key: sum(powers) / len(powers) for key, powers in by_key.items()}
    whole = means.pop(WHOLE, 0.0)
    return max(whole, sum(means[key] for key in sorted(means)))


def covered_s(stretches: Iterable[tuple[float, float]]) -> float:
    """Return the seconds that at least one of the periods covers."""
    total, until = 0.0, float("-inf")
    for began, ended in sorted(stretches):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def attempt_of(reading: Reading) -> str:
    """Return the tracker's job; if unknown, the hour of its start."""
    return reading.beside.job or f"{reading.began_s // 3600:.0f}"


def spans_of(reading: Reading) -> list[Span]:
    """Return the periods and parts of the node that the tracker measured."""
    beside = reading.beside
    # A number identifies a GPU only within its job: another job also counts from 0.
    devices = tuple(f"{beside.job} {name}" if name.isdigit() else name for name in beside.devices or ()) or (WHOLE,)
    parts = (
        ("gpu", devices, reading.gpu_kwh),
        ("cpu", (beside.job,), reading.cpu_kwh),
        ("ram", (beside.job,), reading.ram_kwh),
    )
    return [
        Span(beside.host, part, key, reading.began_s, reading.ended_s, kwh / len(keys))
        for part, keys, kwh in parts
        if kwh > 0
        for key in keys
    ]
