from __future__ import annotations

import re
from collections.abc import Callable

from opsctl.diagnosis.hangs.grouping import grouped
from opsctl.diagnosis.hangs.summary import described, missed, moved, read_written, screen, verdict_of, written
from opsctl.run.attempts.verdict import Cause
from tests.unit.diagnosis.hangs.ranks import stack, waits

HUNG = grouped([*map(waits, (0, 1, 2)), stack(3, "read", "__next__", state="T", node="x2")])


def test_the_line_names_first_the_rank_that_the_others_wait_for() -> None:
    assert re.fullmatch(
        r"rank 3 on x2 .*stopped.* read < __next__; 3 of 5 ranks .* all_reduce < reason < train; 1 of 5 .*",
        described(HUNG, 5),
    )
    several = grouped([*map(waits, range(6)), *(stack(rank, "f", node=f"x{rank}") for rank in (6, 7))])
    assert re.match(r"ranks 6-7 on x6 and x7 .* f; 6 of 8 ranks ", described(several, 8))


def test_of_many_places_those_with_most_ranks_are_listed() -> None:
    said = described(grouped([stack(rank, f"f{rank % 7}") for rank in range(20)]), 20)
    assert re.match(r"3 of 20 ranks .* f0; 3 of 20 ranks .* f1; .*; 8 [^;]*$", said)


def test_the_verdict_names_node_rank_and_the_collective_that_it_misses() -> None:
    verdict = verdict_of(HUNG, 4)
    assert (verdict.cause, verdict.node, verdict.rank, verdict.user_fault) == (Cause.HANG, "x2", 3, False)
    assert re.fullmatch(r"rank 3 on x2 .*stopped.* read < __next__.* all_reduce", verdict.summary)
    assert verdict.confidence >= 0.8 and [quote.source for quote in verdict.evidence] == ["stacks", "stacks"]
    assert missed(HUNG) == "all_reduce"


def test_without_an_odd_one_no_node_and_no_rank_is_claimed() -> None:
    verdict = verdict_of(grouped([*map(waits, range(4))]), 4, found="all 4 ranks have come to it")
    assert (verdict.cause, verdict.node, verdict.rank) == (Cause.HANG, "", None)
    assert verdict.confidence <= 0.5 and verdict.evidence[0].source == "flight recorder"
    spread = grouped([*map(waits, range(6)), *(stack(rank, "f", node=f"x{rank}") for rank in (6, 7))])
    assert (verdict_of(spread, 8).node, verdict_of(spread, 8).rank) == ("", None)


def test_the_screen_has_every_frame_of_every_group(golden: Callable[[str, str], None]) -> None:
    golden("hangs/screen.txt", "\n".join([*screen(HUNG, 5), ""]))


def test_whether_anything_moved_is_asked_of_every_rank() -> None:
    assert not moved(HUNG, HUNG)
    assert not moved(grouped([stack(0, "f@/run/a.py:3")]), grouped([stack(0, "f@/run/a.py:4")])), "a loop that waits"
    assert moved(grouped([stack(0, "f"), waits(1)]), grouped([stack(0, "g"), waits(1)]))
    assert moved(grouped([waits(0), waits(1)]), grouped([waits(0)]))


def test_the_file_has_every_rank() -> None:
    text = written([stack(0, "f"), stack(1, state="T")])
    assert read_written(text) == [stack(0, "f"), stack(1, state="T")] and read_written("=== rank x\ny") == []
    assert text.startswith("=== rank 0 on x1, pid 40, state S\nThread 0x1") and text.endswith("state T\nno answer\n\n")
