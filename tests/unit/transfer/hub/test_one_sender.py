"""One process sends at a time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.run.config.file_kinds import CHECKPOINTS
from opsctl.transfer.hub.sync import FILES, current_senders, only_sender
from tests.hub_server import Fault
from tests.unit.transfer.hub.sent import REPO, Desk, desk

__all__ = ["desk"]
#: A process that sends checkpoints until it is told to end.
HOLDS = """\
import sys
from pathlib import Path
from opsctl.transfer.hub.sync import only_sender
from opsctl.core.errors import OpsctlError
from opsctl.run.config.file_kinds import CHECKPOINTS
from opsctl.run.config.paths import RunPaths
with only_sender(RunPaths(Path(sys.argv[1])), CHECKPOINTS, 0):
    print(flush=True)
    input()
"""


def test_two_that_begin_at_once_send_everything_once(desk: Desk) -> None:
    for number in range(20):
        desk.write(f"tensorboard/{number}.tfevents", b"%d" % number * 500)
    desk.hub.faults = [Fault("preupload", "slow", seconds=1.0)]
    both = [
        subprocess.Popen(desk.words("sync", kind), env=desk.environment(), stdout=subprocess.PIPE, text=True)
        for kind in ("all", "tensorboard")
    ]
    said = sorted(one.communicate(timeout=60)[0].partition(",")[0] for one in both)
    assert [one.returncode for one in both] == [0, 0]
    assert said[0] == "tiny: nothing new\n" or said[0].startswith("tiny: sent: 1 files")
    assert len(desk.hub.taken) == len(set(desk.hub.taken)) == 21
    assert len(desk.hub.asked("put")) == 21 and set(desk.hub.files(REPO)) >= {"tensorboard/19.tfevents"}


def test_another_one_is_left_to_send_and_is_named(desk: Desk) -> None:
    words = [sys.executable, "-c", HOLDS, str(desk.paths.output)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None and held.stdout.readline() == "\n"
        with pytest.raises(OpsctlError, match=f"pid {held.pid}"), only_sender(desk.paths, CHECKPOINTS, 0.0):
            pass
        assert f"pid {held.pid}" in (current_senders(desk.paths) or "")
        with only_sender(desk.paths, FILES, 0.0):
            pass  # a night of checkpoints keeps no log from being sent
        held.kill()
        held.wait(30)
    assert current_senders(desk.paths) is None


def test_whoever_waits_goes_on_when_the_other_one_is_done(desk: Desk) -> None:
    with only_sender(desk.paths, FILES, 0.0):
        words, variables = desk.words("sync"), desk.environment()
        child = subprocess.Popen(words, env=variables, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert child.stderr is not None and "waiting for " in child.stderr.readline()
        assert desk.hub.requests == []
    child.communicate(timeout=60)
    assert child.returncode == 0 and len(desk.hub.commits(REPO)) == 1
