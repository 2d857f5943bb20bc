"""What the tests of alerts share: senders that cost a fork instead of an interpreter and all of apprise."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from opsctl.core.process import Ended, run_program
from opsctl.monitoring.alerts import delivery, send
from tests.fork_server import SERVER


@pytest.fixture
def forked_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every sender a fork of a server. One whose environment has PYTHONPATH stays a program."""
    monkeypatch.setattr(delivery, "run_program", _fork_a_sender)


def _fork_a_sender(
    command: Sequence[str], environment: Mapping[str, str], timeout_s: float, stdin: bytes, **more: Any
) -> Ended:
    assert command[-1] == send.__name__
    if "PYTHONPATH" in environment:
        return run_program(command, environment, timeout_s, stdin, **more)
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "given"), Path(folder, "out")
        given.write_bytes(stdin)
        child = SERVER.Process(target=_send, args=(given, out, dict(environment)))
        child.start()
        child.join()  # it ends itself when its time is up
        return Ended(child.exitcode or 0, out.read_bytes(), b"")


def _send(given: Path, out: Path, environment: dict[str, str]) -> None:
    os.chdir("/")
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = given.open(), out.open("w"), Path(os.devnull).open("w")  # noqa: SIM115
    send.main()
    sys.stdout.flush()
