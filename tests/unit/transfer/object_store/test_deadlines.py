"""Waiting for an answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from opsctl.transfer.object_store.deadlines import NoAnswer, limit_s, within


def test_what_comes_in_time_is_given_and_what_is_raised_is_raised() -> None:
    assert within(60.0, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(60.0, lambda: 1 // 0)


def test_a_library_that_gives_up_first_says_the_same() -> None:
    def late() -> None:
        raise TimeoutError("https://store/with?a=secret")

    with pytest.raises(NoAnswer, match=r"^[^:/]+ 0 s$"):
        within(60.0, late)


def test_more_bytes_may_take_longer() -> None:
    assert limit_s(10.0, 0) == 10.0
    assert limit_s(10.0, 6 << 20) == 106.0  # at 64 KiB a second


_HANGS = """
import threading
from opsctl.transfer.object_store.deadlines import within
within(0.1, threading.Event().wait)
"""


def test_a_call_that_never_returns_holds_no_process_up() -> None:
    done = subprocess.run([sys.executable, "-c", _HANGS], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1].startswith("opsctl.transfer.object_store.deadlines.NoAnswer: ")
