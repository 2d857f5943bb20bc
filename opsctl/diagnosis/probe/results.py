"""What nodes have said, sorted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainer.formats.attempt.probe import BEGAN, DONE, ENDED, FAILED, LATE, PROGRAM, ProbeLine

_STATES = frozenset({BEGAN, ENDED, DONE, FAILED, LATE})


@dataclass(frozen=True)
class Answer:
    """One node's."""

    node: str
    numbers: Mapping[tuple[str, str], Mapping[int | None, float]]  # (part, what) -> by GPU or link -> the number
    texts: Mapping[tuple[str, str], str]
    ended: frozenset[str]  # parts
    failed: Mapping[str, str]  # part -> why
    lost: str = ""  # why nothing more is to be had of it
    late: Mapping[str, str] = field(default_factory=dict)  # part -> that its time was up; PROGRAM: the whole node's

    def number(self, part: str, what: str) -> float | None:
        """The one number of a measure that is neither of a GPU nor of a link."""
        return self.numbers.get((part, what), {}).get(None)

    @property
    def is_silent(self) -> bool:
        """Whether it said nothing at all: not even that a part has begun, which then is ended, failed or late."""
        return not (self.numbers or self.texts or self.ended or self.failed or self.late.keys() - {PROGRAM})


@dataclass
class _Sorting:
    numbers: dict[tuple[str, str], dict[int | None, float]] = field(default_factory=dict)
    texts: dict[tuple[str, str], str] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    late: dict[str, str] = field(default_factory=dict)


def sorted_answers(
    nodes: Sequence[str], lines: Iterable[ProbeLine], lost: Mapping[str, str], late: Mapping[str, str] | None = None
) -> list[Answer]:
    """One answer for each of `nodes`, in their order. lost: node -> why it is not to be heard of any more.

    late: node -> that its time was up. A part that has begun, and of which neither its end nor its failure is known,
    is late where its node is, and has failed elsewhere.
    """
    found = {node: _Sorting() for node in nodes}
    for line in lines:
        if line.node in found:
            _sort(found[line.node], line)
    return [_answer(node, found[node], lost.get(node, ""), (late or {}).get(node, "")) for node in nodes]


def _sort(into: _Sorting, line: ProbeLine) -> None:
    if line.what == BEGAN:
        into.begun.append(line.part)
    elif line.what == ENDED:
        into.ended.add(line.part)
    elif line.what == FAILED:
        into.failed.setdefault(line.part, line.text)
    elif line.what == LATE:
        into.late.setdefault(line.part, line.text)
    elif line.what not in _STATES and line.number is None:
        into.texts[line.part, line.what] = line.text
    elif line.what not in _STATES and line.number is not None:
        values = into.numbers.setdefault((line.part, line.what), {})
        # Of a link each GPU's process says its own: the slowest is what a training waits for.
        before = values.get(line.of)
        worse = max if line.what.endswith(("_us", "_wrong", "_ms")) else min
        values[line.of] = line.number if before is None else worse(before, line.number)


def _answer(node: str, said: _Sorting, lost: str, node_late: str) -> Answer:
    failed, late = dict(said.failed), dict(said.late)
    open_parts = [part for part in said.begun if part not in {*said.ended, *failed, *late}]
    if node_late and not lost:
        late |= dict.fromkeys(open_parts, node_late)
        late[PROGRAM] = node_late
    else:
        failed |= dict.fromkeys(open_parts, lost or "it began and was not heard of again")
    return Answer(node, said.numbers, said.texts, frozenset(said.ended), failed, lost, late)
