"""A sync killed with -9, at each of its stages, and the one that goes on after it."""

from __future__ import annotations

import signal
import subprocess

import pytest

from opsctl.transfer.hub.sync import current_senders
from tests.hub_server import Fault, Request
from tests.unit.transfer.hub.sent import REPO, Desk, desk

__all__ = ["desk"]
CURVES = "tensorboard/events.out.tfevents.1.node"
CONTENTS = {"mp_rank_00_model_states.pt": bytes(range(250)) * 400, "other.pt": b"other"}


def killed_at(desk: Desk, fault: Fault) -> None:
    """Start a sync and kill it when the server gets to the request of `fault`, before or after doing it."""
    started: list[subprocess.Popen[bytes]] = []

    def kill(_: Request) -> None:
        started[0].send_signal(signal.SIGKILL)
        started[0].wait(30)

    fault.call = kill
    desk.hub.faults = [fault]
    process = subprocess.Popen(desk.words("sync"), env=desk.environment(), stderr=subprocess.DEVNULL)
    started.append(process)
    assert process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("what", "after"),
    [
        *(pytest.param(*one, marks=pytest.mark.nightly) for one in (("create", 0), ("put", 1), ("commit", 2))),
        *(("put", 0), ("commit", 0), ("commit", 1)),
    ],
)
def test_the_next_one_goes_on_and_sends_nothing_twice(desk: Desk, what: str, after: int) -> None:
    desk.checkpoint(10, CONTENTS)
    killed_at(desk, Fault(what, "call", after=after))  # what is asked is done, and no one hears the answer
    desk.hub.faults = []
    assert not desk.asks(checkpoints="folder").sync().left
    asked = len(desk.hub.requests)
    assert desk.sync().commits == [] and len(desk.hub.requests) == asked
    found = desk.downloaded()
    assert found[CURVES] == (desk.paths.output / CURVES).read_bytes()
    below = "checkpoints/global_step10/"
    assert {name: found[below + name] for name in CONTENTS} == CONTENTS and below + "manifest.json" in found
    assert sorted(desk.hub.taken) == sorted(set(desk.hub.taken)), "what had arrived was not sent again"
    titles = [one.title for one in desk.hub.commits(REPO)]
    assert len(titles) == 3 and len(set(titles)) == 3


def test_nobody_waits_for_one_that_was_killed(desk: Desk) -> None:
    killed_at(desk, Fault("preupload", "call"))
    assert list(desk.paths.hub_uploaders.iterdir()) and current_senders(desk.paths) is None
    desk.hub.faults = []
    assert desk.sync().files == 2 and desk.waited == []


def test_a_killed_sync_leaves_nothing_that_status_takes_for_sent(desk: Desk) -> None:
    killed_at(desk, Fault("put", "call"))
    desk.hub.faults = []
    looked = desk.opsctl("status")
    assert looked.returncode == 0 and looked.stdout.startswith("tiny: 2 files ") and "never" in looked.stdout
