from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from opsctl.run.config.file_kinds import CHECKPOINTS
from opsctl.run.config.paths import RunPaths
from opsctl.transfer.hub.ledger import sent_files
from opsctl.transfer.hub.retry_policy import Patience
from opsctl.transfer.hub.uploader import FILES, Busy, the_uploader, who_sends
from tests.hub_server import Fault, Request
from tests.unit.transfer.hub.sent import REPO, Desk, desk
from trainer.formats.attempt.lease import SILENT_S

__all__ = ["desk"]
#: A process that sends checkpoints until it is told to end.
HOLDS = """\
import sys
from pathlib import Path
from opsctl.transfer.hub.retry_policy import Patience
from opsctl.transfer.hub.uploader import the_uploader
from opsctl.run.config.file_kinds import CHECKPOINTS
from opsctl.run.config.paths import RunPaths
with the_uploader(RunPaths(Path(sys.argv[1])), CHECKPOINTS, Patience(0)):
    print(flush=True)
    input()
"""


#: opsctl where Python says that the host has another name.
CALLED = """\
import runpy, socket, sys
name = sys.argv.pop(1)
socket.gethostname = lambda: name
runpy.run_module("opsctl", run_name="__main__")
"""


def impatient() -> Patience:
    return Patience(0.0)


def on_another_host(paths: RunPaths, monkeypatch: pytest.MonkeyPatch, silent_s: float) -> None:
    """Leave what a sender on a host whose locks do not reach here leaves while it sends."""
    with monkeypatch.context() as there:
        there.setattr("socket.gethostname", lambda: "node7")
        with the_uploader(paths, FILES, impatient()):
            claim = paths.hub_uploaders / "files.json"
            left = claim.read_bytes()
    claim.write_bytes(left)
    then = time.time() - silent_s
    os.utime(claim, (then, then))


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


def test_a_host_whose_heart_beats_is_left_to_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    on_another_host(desk.paths, monkeypatch, 10.0)
    with pytest.raises(Busy, match="@node7"), the_uploader(desk.paths, FILES, impatient()):
        pass
    assert "@node7" in (who_sends(desk.paths) or "")
    with the_uploader(desk.paths, CHECKPOINTS, impatient()):
        pass  # a night of checkpoints keeps no log from going, nor the other way round


def on_a_host_called(name: str, words: list[str]) -> list[str]:
    """The words of a process on a host of that name: really, where we may; else Python's word for it stands in."""
    really = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]
    if shutil.which("unshare") and subprocess.run([*really, "true"], capture_output=True).returncode == 0:
        return [*really, *words]
    return [sys.executable, "-c", CALLED, name, *words[words.index("opsctl") + 1 :]]


def test_another_host_waits_for_one_that_sends_and_goes_on_when_that_was_killed_and_silent(desk: Desk) -> None:
    reached, goes_on = threading.Event(), threading.Event()

    def hold(_: Request) -> None:
        reached.set()
        goes_on.wait(60)

    desk.hub.faults = [Fault("put", "call", call=hold)]
    first = subprocess.Popen(on_a_host_called("node7", desk.words("sync")), env=desk.environment())
    assert reached.wait(60)
    with pytest.raises(Busy, match="@node7"):
        desk.sync(most_s=0.0)
    first.kill()
    first.wait(30)
    goes_on.set()
    with pytest.raises(Busy, match="@node7"):  # it may only be slow: no lock says it is dead
        desk.sync(most_s=0.0)
    then = time.time() - SILENT_S - 60
    os.utime(desk.paths.hub_uploaders / "files.json", (then, then))
    assert desk.sync().files == 2 and who_sends(desk.paths) is None
    curves = "tensorboard/events.out.tfevents.1.node"
    assert desk.downloaded()[curves] == (desk.paths.output / curves).read_bytes()
    assert len(desk.hub.commits(REPO)) == 1


def test_a_host_that_is_silent_is_gone_on_from_and_stops_when_it_wakes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as there:
        there.setattr("socket.gethostname", lambda: "node7")
        sleeper = the_uploader(desk.paths, FILES, impatient(), every_s=1000)
        sleeping = sleeper.__enter__()
    on_another_host(desk.paths, monkeypatch, SILENT_S + 60)
    assert desk.sync().files == 2
    desk.write("logs/more.txt", b"x\n")
    with the_uploader(desk.paths, FILES, impatient()):
        assert not sleeping.is_still()
    sleeper.__exit__(None, None, None)


def test_whoever_waits_goes_on_when_the_other_one_is_done(desk: Desk) -> None:
    with the_uploader(desk.paths, FILES, impatient()):
        words, variables = desk.words("sync"), desk.environment()
        child = subprocess.Popen(words, env=variables, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert child.stderr is not None
        assert child.stderr.readline().startswith("tiny: waiting: ")
        assert desk.hub.requests == []
    child.communicate(timeout=60)
    assert child.returncode == 0 and len(desk.hub.commits(REPO)) == 1


def test_a_ledger_that_grew_long_is_written_anew_unless_somebody_may_add_to_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsctl.transfer.hub.ledger._FEW_LINES", 3)

    def lines_after(count: int) -> int:
        for number in range(count):
            desk.write("logs/main_log.txt", b"line\n" * (number + count))
            desk.sync()
        return desk.paths.hub_ledger.read_bytes().count(b"\n")

    desk.write("logs/main_log.txt", b"first\n")
    desk.sync()
    known = sent_files(desk.paths)
    words = [sys.executable, "-c", HOLDS, str(desk.paths.output)]
    held = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert held.stdout is not None and held.stdout.readline() == "\n"
    assert lines_after(6) == 10  # two names on their way, then eight with what was sent
    held.communicate("\n", timeout=30)
    assert lines_after(1) == 2
    assert set(sent_files(desk.paths)) == set(known)
