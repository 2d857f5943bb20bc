from __future__ import annotations

import pytest

from opsctl.diagnosis.hangs.frames import Frame, collective_of, place_of
from opsctl.diagnosis.hangs.grouping import grouped
from tests.unit.diagnosis.hangs.ranks import TORCH, stack, waits

P2P = "/x/site-packages/deepspeed/runtime/pipe/p2p.py"


def test_a_rank_in_a_collective_waits_in_what_the_program_called() -> None:
    inner = stack(0, f"all_gather@{TORCH}:1", f"all_gather_object@{TORCH}:9", "agree@/run/agreement.py:5")
    assert place_of(inner).collective == "all_gather_object"
    assert place_of(waits(0)).words.endswith(" all_reduce < reason < train")


@pytest.mark.parametrize(
    ("frames", "collective"),
    [
        ([Frame("all_reduce", "/run/mine.py", 1), Frame("train", "/run/t.py", 2)], ""),  # the program's own
        ([Frame("recv", P2P, 1), Frame("_exec", "/x/site-packages/deepspeed/runtime/pipe/engine.py", 2)], "recv"),
        ([Frame("backward", "/x/trainer/parallel/products.py", 57)], "wait"),  # on a work's handle, in C++
        ([Frame("ncclGroupEnd", "libnccl.so.2", 0), Frame("f", "/run/t.py", 2)], "wait"),
        ([Frame("handler", "/run/data.py", 1), Frame("all_reduce", TORCH, 2)], ""),  # called from within it
        (
            [Frame("sleep", "/usr/lib/python3.11/time.py", 1), Frame("h", "/run/a.py", 1), Frame("barrier", TORCH, 2)],
            "",
        ),
        ([Frame("__poll", "poll.c", 9), Frame("wait", "libc.so.6", 0), Frame("barrier", TORCH, 2)], "barrier"),
        ([Frame("read", "/run/a.py", 1), Frame("g", "/run/a.py", 4), Frame("barrier", TORCH, 2)], ""),
        ([], ""),
    ],
)
def test_only_frames_of_torch_or_of_its_libraries_are_collectives(frames: list[Frame], collective: str) -> None:
    assert collective_of(frames) == collective


def test_a_signals_handler_inside_a_collective_is_what_its_rank_is_in_and_the_others_wait_for() -> None:
    wrapper = "wrapper@/x/site-packages/torch/distributed/c10d_logger.py:81"
    handles = stack(2, "asleep@/run/site/handlers.py:4", wrapper, "reason@/run/leaving.py:30", "train@/run/train.py:9")
    assert place_of(handles).words.endswith(" asleep < reason < train")
    odd, *others = grouped([waits(0), waits(1), handles, waits(3)])
    assert (odd.ranks, odd.is_odd, [one.is_odd for one in others]) == ((2,), True, [False])


def test_lines_count_but_not_inside_loops_that_wait() -> None:
    assert place_of(waits(0)).key != place_of(waits(1, caller_line=44)).key, "another call of the same collective"
    loops = [stack(0, f"sleeping@/run/user.py:{line}", "train@/run/train.py:9") for line in (4, 5)]
    assert place_of(loops[0]).key == place_of(loops[1]).key
    queues = [stack(0, f"wait@/usr/lib/python3.11/threading.py:{line}", "get@/run/q.py:1") for line in (320, 324)]
    assert place_of(queues[0]).key == place_of(queues[1]).key


@pytest.mark.parametrize(
    ("state", "trouble"),
    [("T", "stopped"), ("D", "disk"), ("gone", "gone"), ("R", "process state R"), ("Z", "dead")],
)
def test_a_rank_that_did_not_answer_has_a_reason(state: str, trouble: str) -> None:
    place = place_of(stack(1, state=state))
    assert trouble in place.trouble and place.trouble in place.words


def test_the_words_name_the_calls_and_what_the_rank_is_busy_with() -> None:
    for calls, state, facts in (
        (("read", "__next__"), "T", ("stopped", "read < __next__")),
        (("_try_get@/x/torch/utils/data/dataloader.py:1",), "S", ("data loading", "_try_get")),
        (("write@/x/trainer/checkpoint/files.py:1",), "S", ("save", "write")),
        (("pread@/run/f.py:1",), "D", ("disk", "pread")),
    ):
        words = place_of(stack(1, *calls, state=state)).words
        assert all(fact in words for fact in facts), words
