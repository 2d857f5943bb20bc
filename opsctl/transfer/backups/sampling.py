"""Which files a verification reads again: a share of all, drawn so that a round of them reads every file once. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec


class Round(msgspec.Struct, frozen=True):
    """How far the reading of a destination's files has come: a line of `.opsctl/backups-read.jsonl`."""

    to: str
    number: int = 0  # of the round
    reached: str = ""  # the last place of the round that was read


@dataclass(frozen=True)
class Drawn:
    """What is read this time, as (backup, file), and how far the round is then."""

    files: tuple[tuple[str, str], ...]
    after: Round


def draw(files: Sequence[tuple[str, str]], share: float, least: int, before: Round) -> Drawn:
    """The next files of the round: `share` of all, at least `least` of them; past its end those of the next round.

    Files that are new since stand at their place in the round like any other.
    """
    count = min(len(files), max(least, math.ceil(share * len(files))))
    placed = sorted((_place(file, before.number), file) for file in files)
    rest = [one for one in placed if one[0] > before.reached]
    if len(rest) > count:
        return Drawn(tuple(file for _, file in rest[:count]), Round(before.to, before.number, rest[count - 1][0]))
    taken = [file for _, file in rest]
    number, missing = before.number + 1, count - len(taken)
    again = sorted((_place(file, number), file) for file in files if file not in set(taken))[:missing]
    reached = again[-1][0] if again else ""
    return Drawn((*taken, *(file for _, file in again)), Round(before.to, number, reached))


def share_of(text: str) -> tuple[float, int]:
    """`5%` is (0.05, 1), `20` is (0, 20). Raises ValueError, one line."""
    try:
        if text.endswith("%"):
            percent = float(text[:-1])
            if 0 < percent <= 100:
                return percent / 100, 1
        elif int(text) > 0:
            return 0.0, int(text)
    except ValueError:
        pass
    raise ValueError(f"{text!a}: give a number of files, such as 20, or a share, such as 5%")


def _place(file: tuple[str, str], number: int) -> str:
    import xxhash

    return str(xxhash.xxh64(f"{number}\0{file[0]}\0{file[1]}".encode(errors="surrogateescape")).hexdigest())
