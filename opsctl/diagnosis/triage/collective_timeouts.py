"""Find the rank that the others waited for when a collective timed out: the one that did not wait. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from opsctl.diagnosis.triage.findings import Finding
from opsctl.diagnosis.triage.lines import read_line

_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(?P<number>\d+), )?OpType=(?P<what>\w+)|Timed out waiting \d+ms for (recv|send) operation"
)
#: Marks a line of a rank that waits in a collective.
WAITED_MARK = b"WorkNCCL("
_BAR = re.compile(r"^(?P<what>[^%|]*?):?\s*\d+%\|[^|]*\|\s*(?P<done>[\d.]+)")
_TRAINS = re.compile(r"(?i)\b(epoch|train|step|iter)")
_WORK_WORDS = re.compile(
    r"(?i)^\W*(evaluat|validat|tokeni[sz]|preprocess|download|upload|generat|merg|convert|export|pack|shuffl|filter)\w*ing\b"
    r"|\balone\b|main process only|only on (the )?(main process|rank 0)|rank 0 only"
)
#: Ranks that did not wait count if they are at most this share of all ranks.
_MOST_MISSING = 0.25
#: The highest rank is trusted up to this multiple of the ranks with lines: a number in a log can mean anything.
_MOST_PER_HEARD = 4


@dataclass(frozen=True)
class Waited:
    """Ranks that waited in a collective until its timeout."""

    ranks: frozenset[int]
    missing: tuple[int, ...]  # ranks that did not wait, if they are few
    odd: tuple[int, ...]  # ranks in another collective with the same sequence number
    collective: str  # of most ranks


def waited(findings: Iterable[Finding], size: int) -> Waited:
    """Return the ranks that waited. size: known number of ranks; the highest rank in the log can raise it."""
    works: dict[int, tuple[str, str]] = {}
    for one in findings:
        match = _WORK.search(one.text)
        if match and one.rank is not None:
            works.setdefault(one.rank, (match["number"] or "", match["what"] or "gloo"))
    if not works:
        return Waited(frozenset(), (), (), "")
    (number, what), _ = Counter(works.values()).most_common(1)[0]
    odd = tuple(rank for rank, (seen, other) in sorted(works.items()) if seen and seen == number and other != what)
    size = max(size, min(max(works) + 1, _MOST_PER_HEARD * len(works)))
    missing = tuple(rank for rank in range(size) if rank not in works)
    few = missing if 0 < len(missing) <= max(1, size * _MOST_MISSING) else ()
    return Waited(frozenset(works), few, odd, what)


def other_work(before: Sequence[str], after: Sequence[str], reference: datetime) -> list[tuple[int, str]]:
    """Return (rank, line) of other work than training that ran while other ranks waited.

    before, after: lines since the last iteration, before and after the first line about a collective timeout. A
    progress bar counts if it advances afterwards. A bar without a rank is rank 0's, because only rank 0 prints them.
    """
    found: list[tuple[int, str]] = []
    done: dict[str, float] = {}
    for is_after, lines in ((False, before), (True, after)):
        for line in lines:
            parsed = read_line(line, reference)
            rank = 0 if parsed.rank is None and parsed.local_rank in (None, 0) else parsed.rank
            bar = _BAR.match(parsed.text)
            if bar:
                what, count = bar["what"], float(bar["done"].strip(".") or 0)
                advances = is_after and (count > done[what] if what in done else bool(what))
                done[what] = max(count, done.get(what, 0.0))
                if advances and rank is not None and not _TRAINS.search(what):
                    found.append((rank, parsed.text.strip()[:80]))
            elif not is_after and parsed.rank is not None and _WORK_WORDS.search(parsed.text):
                found.append((parsed.rank, parsed.text.strip()[:80]))
    return found
