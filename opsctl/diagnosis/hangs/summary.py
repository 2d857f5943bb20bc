"""A group of ranks as text, as JSON and as a verdict. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.diagnosis.hangs import summary
from opsctl.diagnosis.hangs.frames import Place, is_of_all
from opsctl.diagnosis.hangs.grouping import Group, folded
from opsctl.run.attempts.verdict import Cause, Quote, StackGroup, Verdict
from trainer.formats.attempt.error_file import RankStack

#: Lines of the training log at the beginning and end of a silence, and the file with the last stacks of it.
SILENT, GOES_ON = "opsctl: nothing was logged for ", "opsctl: the training continues after "
SILENT_STACKS = "stacks-silent.txt"
_HEAD = re.compile(r"^=== (rank .*)$", re.MULTILINE)
_HEAD_PARTS = re.compile(r"rank (?P<rank>\d{1,9}) on (?P<node>\S*), pid (?P<pid>\S+), state (?P<state>\S*)")
#: Groups and nodes that a sentence names.
_GROUPS, _NODES = 4, 3
#: The confidence that the others wait for the odd rank.
_STUCK, _ELSEWHERE, _OTHER_COLLECTIVE = 0.9, 0.8, 0.6


def described(groups: Sequence[Group], ranks: int) -> str:
    """Describe the groups in one line, those that the others wait for first. ranks: the number of all ranks."""
    parts = [f"{ranks_text(group, ranks)} {_verb(group)}" for group in groups[:_GROUPS]]
    if groups[_GROUPS:]:
        parts.append(f"{sum(len(group.stacks) for group in groups[_GROUPS:])} elsewhere")
    silent = ranks - sum(len(group.stacks) for group in groups)
    if silent > 0:
        parts.append(f"{silent} of {ranks} ranks not found")
    return "; ".join(parts)


def ranks_text(group: Group, ranks: int) -> str:
    """`rank 3 on node2`, `ranks 3 and 5 on node2 and node4`, `380 of 384 ranks`."""
    names = group.ranks
    where = _and(group.nodes, _NODES)
    on = f" on {where}" if where else ""
    if len(names) == 1:
        return f"rank {names[0]}{on}"
    if group.is_odd and len(names) <= ranks // 2:
        return f"ranks {folded(names)}{on}"
    return f"{len(names)} of {ranks} ranks"


def missed(groups: Sequence[Group]) -> str:
    """Return the collective that the odd ranks miss, in which most others wait; empty if unknown."""
    waiting = [group for group in groups if not group.is_odd and is_of_all(group.place.collective)]
    if not any(group.is_odd for group in groups) or not waiting:
        return ""
    return max(waiting, key=lambda group: len(group.stacks)).place.collective


def verdict_of(groups: Sequence[Group], ranks: int, at: datetime | None = None, found: str = "") -> Verdict:
    """Return the verdict on a hung step by its ranks' stacks. found: a sentence from the flight recorder."""
    odd = [group for group in groups if group.is_odd]
    first = odd[0].stacks[0] if odd else None
    evidence = tuple(
        Quote(source="stacks", text=f"{ranks_text(group, ranks)} {_verb(group)}", at=at) for group in groups[:_GROUPS]
    )
    if found:
        evidence = (Quote(source="flight recorder", text=found, at=at), *evidence)
    misses = missed(groups)
    summary = f"{ranks_text(odd[0], ranks)} {_verb(odd[0])}" if odd else "every rank waits, and it is unknown for which"
    return Verdict(
        cause=Cause.HANG,
        summary=f"{summary}, and the others wait for it in {misses}" if misses else summary,
        node=first.node if first and len(odd[0].nodes) == 1 else "",
        rank=first.rank if first and len(odd[0].stacks) == 1 else None,
        at=at,
        confidence=_confidence(odd[0].place) if odd else 0.5,
        evidence=evidence,
        todo=("Read the stacks in the attempt's folder. Exclude a node that hangs repeatedly",),
    )


def screen(groups: Sequence[Group], ranks: int, found: str = "") -> list[str]:
    """Return the lines of all groups, those that the others wait for first: ranks, place, nodes."""
    lines = [found] if found else []
    misses = missed(groups)
    for group in groups:
        lines.append(f"{'DIFFERS  ' if group.is_odd else ''}{_many(group, ranks)}: {group.place.words}")
        if group.is_odd and misses:
            lines.append(f"  not in {misses}, in which the others wait")
        lines += [f"  {frame}" for frame in group.place.frames]
        if group.nodes:
            lines.append(f"  on {_and(group.nodes, 8)}")
    silent = ranks - sum(len(group.stacks) for group in groups)
    return [*lines, *([f"{silent} of {ranks} ranks: no stack was found"] if silent > 0 else [])]


def moved(before: Sequence[Group], after: Sequence[Group]) -> bool:
    """Return True if any rank is at another place than before: the training continues, however slowly."""
    return dict(_places(before)) != dict(_places(after))


def written(stacks: Sequence[RankStack]) -> str:
    """Return the stacks as text for a file."""
    return "".join(
        f"=== rank {one.rank} on {one.node}, pid {one.pid}, state {one.state}\n{one.text.rstrip() or 'no answer'}\n\n"
        for one in stacks
    )


def read_written(text: str) -> list[RankStack]:
    """Parse the output of `written`, by rank; skip everything else."""
    found = []
    for head, body in zip(*[iter(_HEAD.split(text)[1:])] * 2, strict=False):
        if match := _HEAD_PARTS.fullmatch(head):
            pid = int(match["pid"]) if match["pid"].isdecimal() else None
            text = "" if body.strip() == "no answer" else body.strip("\n") + "\n"
            found.append(RankStack(int(match["rank"]), match["node"], pid, match["state"], text))
    return sorted(found, key=lambda one: one.rank)


def _places(groups: Sequence[Group]) -> Iterator[tuple[int, object]]:
    for group in groups:
        for one in group.stacks:
            # Without lines, because a loop that waits also moves between lines.
            yield one.rank, (group.place.trouble, [(frame.function, frame.file) for frame in group.place.frames])


def _verb(group: Group) -> str:
    words = group.place.words
    if len(group.stacks) == 1 or words.startswith("did not"):
        return words
    return words.replace("waits ", "wait ", 1) if words.startswith("waits ") else words.replace("is ", "are ", 1)


def _many(group: Group, ranks: int) -> str:
    number = len(group.stacks)
    return f"rank {group.ranks[0]}" if number == 1 else f"{number} of {ranks} ranks ({folded(group.ranks)})"


def _confidence(place: Place) -> float:
    if place.trouble:
        return _STUCK
    return _OTHER_COLLECTIVE if place.collective else _ELSEWHERE


def _and(names: Sequence[str], most: int) -> str:
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


class PrintedStacks(Struct, frozen=True, kw_only=True):
    """The places of all ranks of a live job."""

    job: Annotated[str, Meta(description="The job as squeue shows it.")]
    ranks: Annotated[int, Meta(description="Number of its ranks.")]
    found: Annotated[int, Meta(description="Number of ranks with a stack.")]
    misses: Annotated[
        str, Meta(description="The collective in which the others wait for the odd ones; empty if unknown.")
    ]
    flight_recorder: Annotated[
        str, Meta(description="Result of torch's flight recorder in a sentence; empty without one.")
    ]
    groups: Annotated[tuple[StackGroup, ...], Meta(description="Ranks with equal stacks, the odd ones first.")]


def printed_stacks(job: str, groups: Sequence[Group], ranks: int, flight: str) -> PrintedStacks:
    """Return all groups as printed."""
    return PrintedStacks(
        job=job,
        ranks=ranks,
        found=sum(len(group.stacks) for group in groups),
        misses=summary.missed(groups),
        flight_recorder=flight,
        groups=tuple(group.recorded() for group in groups),
    )
