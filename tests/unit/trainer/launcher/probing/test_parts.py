"""Parts of a probe in processes of their own: what hangs, dies or raises is told, and the next one runs."""

from __future__ import annotations

import os
import signal
import time

import pytest

from trainer.formats.attempt.node_samples import ProbeLine
from trainer.formats.tolerant import decode
from trainer.launcher.probing.parts import Part, Tell, _turn, run_part


def _hang(_: Tell) -> None:
    time.sleep(60)


def _die(_: Tell) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(_: Tell) -> None:
    raise OSError("no such device")


def _find(tell: Tell) -> None:
    tell("rate", 3, of=1)


@pytest.mark.parametrize(
    ("measure", "limit_s", "end", "fact"),
    [
        (_hang, 0.3, "late", "0.3 s"),
        (_die, 60.0, "failed", "SIGKILL"),
        (_raise, 60.0, "failed", "OSError: no such device"),
    ],
)
def test_a_part_that_fails_says_how_and_the_next_one_is_measured(
    measure: object, limit_s: float, end: str, fact: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run_part("x1", Part("disk", limit_s, measure))  # type: ignore[arg-type]
    run_part("x1", Part("memory", 60.0, _find))
    lines = [line for text in capfd.readouterr().out.splitlines() if (line := decode(text, ProbeLine))]
    assert [(line.part, line.what) for line in lines[:2]] == [("disk", "began"), ("disk", end)]
    assert fact in lines[1].text
    assert ("memory", "rate", 3.0, 1) in [(line.part, line.what, line.number, line.of) for line in lines]
    assert lines[-1].what == "ended"


def test_nodes_of_one_host_take_turns_and_nobody_waits_for_ever() -> None:
    name = f"test-turn-{os.getpid()}"
    with _turn(name, 1.0):
        began = time.monotonic()
        with _turn(name, 0.2):
            assert time.monotonic() - began >= 0.2
    began = time.monotonic()
    with _turn(name, 5.0):
        assert time.monotonic() - began < 1.0
