"""A save killed with -9 at any write, rename, fsync or removal that it makes loses no checkpoint.

The kernel stops the saving process at each such call (`tests.killed`), one save for each call; `killed_saves` says how
each save is made and what is looked at afterwards.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests import killed
from tests.distributed import killed_saves
from tests.distributed.killed_saves import SCENARIOS
from tests.distributed.pool import Pool

pytestmark = pytest.mark.distributed

# The others differ in what these cover too: docs/lab-notes.md has the numbers of a sweep over all.
ALONE = [
    *("first", "next, beside", "over an existing one", "no swap: over the latest"),
    "no swap: after a kill between the renames",
]
TOGETHER = ["two ranks, the first", "two ranks, the second, beside"]


def swept(folder: Path, names: list[str]) -> str | dict[str, Any]:
    """In a rank, which has no threads: what was found, or why no process can be watched here."""
    return killed.why_not() or killed_saves.main(folder, names)


@pytest.mark.parametrize("names", [ALONE, TOGETHER], ids=["one rank", "two ranks"])
def test_a_save_killed_at_any_call_that_changes_a_file_loses_no_checkpoint(
    pool: Pool, tmp_path: Path, names: list[str]
) -> None:
    in_memory = Path("/dev/shm")  # where the calls are the same, and an fsync takes no time
    with tempfile.TemporaryDirectory(dir=in_memory if os.access(in_memory, os.W_OK) else tmp_path) as folder:
        found = pool.run(1, swept, Path(folder), names, timeout_s=500)[0]
    if isinstance(found, str):
        pytest.skip(found)
    assert {name: seen["wrong"] for name, seen in found.items()} == {name: [] for name in names}
    for name, seen in found.items():
        made = {call.split()[0] for call in seen["calls"]}
        assert made >= {"openat", "write", "fsync"}, name
        is_first = SCENARIOS[name].killed_rank == 0
        assert not is_first or made & {"rename", "renameat2"}, name
        assert not (is_first and SCENARIOS[name].without) or made & {"unlink", "unlinkat"}, name
