"""Stacks of ranks for tests, in the form of a node's answer."""

from __future__ import annotations

from trainer.formats.attempt.error_file import RankStack

TORCH = "/x/site-packages/torch/distributed/distributed_c10d.py"


def stack(rank: int, *calls: str, state: str = "S", node: str = "x1") -> RankStack:
    """Return a rank whose main thread is in `calls`, innermost first, next to a thread that reads ahead.

    A call is `name` in its own file, or `name@FILE:LINE`.
    """
    frames = ""
    for call in calls:
        function, _, place = call.partition("@")
        file, _, line = (place or f"/run/{function}.py:7").rpartition(":")
        frames += f'  File "{file}", line {line} in {function}\n'
    reader = 'Thread 0x1 (most recent call first):\n  File "/x/queue.py", line 1 in get\n\n'
    text = f"{reader}Current thread 0x2 (most recent call first):\n{frames}" if calls else ""
    return RankStack(rank, node, 40 + rank, state, text)


def waits(rank: int, collective: str = "all_reduce", caller_line: int = 30, node: str = "x1") -> RankStack:
    """Return a rank in a collective, called from the training's step."""
    wrapper = "wrapper@/x/site-packages/torch/distributed/c10d_logger.py:83"
    calls = (f"{collective}@{TORCH}:3040", wrapper, f"reason@/run/leaving.py:{caller_line}", "train@/run/train.py:9")
    return stack(rank, *calls, node=node)
