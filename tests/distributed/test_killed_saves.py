"""A save killed with -9 at any write, rename, fsync or removal that it makes loses no checkpoint.

The kernel stops the saving process at each such call (`tests.killed`), one save for each call; `killed_saves` says how
each save is made and what is looked at afterwards.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.killed_saves import SCENARIOS
from tests.distributed.pool import ROOT

pytestmark = pytest.mark.distributed

# The others differ in what these cover too: docs/lab-notes.md has the numbers of a sweep over all.
ALONE = [
    *("first", "next, beside", "over an existing one", "no swap: over the latest"),
    "no swap: after a kill between the renames",
]
TOGETHER = ["two ranks, the first", "two ranks, the second, beside"]


@pytest.mark.parametrize("names", [ALONE, TOGETHER], ids=["one rank", "two ranks"])
def test_a_save_killed_at_any_call_that_changes_a_file_loses_no_checkpoint(tmp_path: Path, names: list[str]) -> None:
    program = "import tests.killed; print(tests.killed.why_not() or '')"
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    if asked.stdout.strip():
        pytest.skip(asked.stdout.strip())
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-m", "tests.distributed.killed_saves", str(tmp_path), *names]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: seen["wrong"] for name, seen in found.items()} == {name: [] for name in names}
    for name, seen in found.items():
        made = {call.split()[0] for call in seen["calls"]}
        assert made >= {"openat", "write", "fsync"}, name
        is_first = SCENARIOS[name].killed_rank == 0
        assert not is_first or made & {"rename", "renameat2"}, name
        assert not (is_first and SCENARIOS[name].without) or made & {"unlink", "unlinkat"}, name
