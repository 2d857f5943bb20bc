"""Job arrays as sbatch writes them: `1-3%1`. Pure."""

from __future__ import annotations

import re

from opsctl.errors import UsageError

_ARRAY = re.compile(r"\d+(?:-\d+(?::\d+)?)?(?:,\d+(?:-\d+(?::\d+)?)?)*")
#: More than any cluster's MaxArraySize: a slip of the finger should not take minutes to count.
_MOST_TASKS = 4_000_001


def one_at_a_time(array: str) -> str:
    """`array` with `%1`: a training's tasks go on from each other. Raises UsageError for what cannot be."""
    tasks, percent, limit = array.strip().partition("%")
    if not _ARRAY.fullmatch(tasks) or (percent and not limit.isdigit()):
        raise UsageError(f"--array {array}: not an array as sbatch takes it, like 1-10%1")
    if percent and limit != "1":
        raise UsageError(f"--array {array}: {limit} tasks of one training cannot run side by side; use {tasks}%1")
    count_tasks(tasks)
    return f"{tasks}%1"


def count_tasks(array: str) -> int:
    """How many tasks an array, or what is pending of it, has. Raises UsageError for an empty range."""
    indices: set[int] = set()
    for part in array.partition("%")[0].split(","):
        bounds, _, step = part.partition(":")
        first, _, last = bounds.partition("-")
        if int(last or first) < int(first) or (step and int(step) < 1):
            raise UsageError(f"--array {array}: {part} is empty; ranges go up, like 1-10")
        if int(last or first) >= _MOST_TASKS:
            raise UsageError(f"--array {array}: {last or first} is more than any Slurm takes")
        indices.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return len(indices)
