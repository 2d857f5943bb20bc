"""What `trainer.launcher.stacks` prints about each rank of its node: lines of JSON.

Of a line longer than a kilobyte srun passes on pieces, and mixes those of several nodes: a long text comes in many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

#: Characters of text in a line: written as JSON six bytes each at most, beside some hundred for the rest.
_PIECE = 120


class RankStack(msgspec.Struct, frozen=True):
    """The Python stacks of one rank's threads, or why there are none."""

    rank: int
    node: str = ""
    pid: int | None = None
    state: str = ""  # of the process, as /proc has it: R, S, D, T, ...
    text: str = ""  # as faulthandler writes it, the main thread last; empty where the process did not answer


def pieces(stack: RankStack) -> Iterator[RankStack]:
    """`stack` with its text cut into pieces, one for each line."""
    for start in range(0, max(1, len(stack.text)), _PIECE):
        yield msgspec.structs.replace(stack, text=stack.text[start : start + _PIECE])


def joined(found: Iterable[RankStack]) -> list[RankStack]:
    """The stacks whose pieces these are, by rank; a rank's pieces are in their order."""
    stacks: dict[tuple[str, int], RankStack] = {}
    for piece in found:
        before = stacks.get((piece.node, piece.rank))
        text = before.text + piece.text if before else piece.text
        stacks[piece.node, piece.rank] = msgspec.structs.replace(piece, text=text)
    return sorted(stacks.values(), key=lambda stack: stack.rank)
