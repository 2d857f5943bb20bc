"""The machine's own `crontab`, as a user of the test's own; needs no daemon."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.jobs.scheduler import chain
from opsctl.run.state.scheduler import read_chain
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory, a_cron
from tests.users import as_user

pytestmark = [
    pytest.mark.skipif(not shutil.which("crontab"), reason="no crontab here (Debian: apt-get install cron)"),
    pytest.mark.skipif(os.getuid() != 0, reason="making a Unix user needs root"),
]
MINE = "MAILTO=me\n# my own\n0 3 * * * backup --all\n"


def test_the_machines_crontab_takes_our_line_and_gives_all_else_back_as_it_was(unix_user: Callable[..., str]) -> None:
    name = unix_user("ann")
    subprocess.run(["crontab", "-u", name, "-"], input=MINE, text=True, check=True, timeout=20)

    def table() -> str:
        return subprocess.run(["crontab", "-u", name, "-l"], capture_output=True, text=True, timeout=20).stdout

    def begin(folder: Path) -> str:
        cron = a_cron(folder, SlurmInMemory())
        chain.start(cron, "crontab", 3600, False, time.time)
        chain.start(cron, "crontab", 900, True, time.time)
        found = read_chain(cron.paths)
        assert found is not None
        return found.token

    folder = Path("/tmp") / f"cron of {name}"
    try:
        token = as_user(name, lambda: begin(folder))
        assert table().startswith(MINE)
        (line,) = [line for line in table().removeprefix(MINE).splitlines() if not line.startswith("#")]
        assert line.startswith("0,15,30,45 * * * * ") and f"--token {token} " in line and f"'{folder}'" in line
        # As cron runs it: by sh, with hardly a variable.
        words = line.split(" ", 5)[5]
        assert subprocess.run(["sh", "-n", "-c", words], timeout=20).returncode == 0
        as_user(name, lambda: chain.stop(a_cron(folder, SlurmInMemory())) and None)
        assert table() == MINE
    finally:
        subprocess.run(["crontab", "-u", name, "-r"], check=False, timeout=20)
        shutil.rmtree(folder, ignore_errors=True)
