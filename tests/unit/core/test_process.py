"""Foreign programs, as small scripts that end, hang, or leave something behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opsctl.core.process import Overdue, find_program, run_on_terminal, run_program

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def sh(text: str) -> list[str]:
    return ["/bin/sh", "-c", text]


def test_what_it_printed_its_code_and_what_it_was_handed() -> None:
    ended = run_program(sh("cat; pwd; umask; echo no >&2; exit 3"), ENVIRONMENT, 20, b"in\n", folder="/", umask=0o022)
    assert (ended.code, ended.out, ended.err) == (3, b"in\n/\n0022\n", b"no\n")
    assert run_program(sh("cat; kill -9 $$"), ENVIRONMENT, 20).code == -signal.SIGKILL


def test_what_does_not_end_is_killed_with_what_it_started_and_its_words_are_kept(tmp_path: Path) -> None:
    with pytest.raises(Overdue) as late:
        run_program(sh(f"echo begun; sleep 60 & echo $! >{tmp_path}/child; wait"), ENVIRONMENT, 0.5)
    assert late.value.out == b"begun\n"
    assert _is_gone(int((tmp_path / "child").read_text()))


def test_what_it_prints_is_handed_over_as_it_comes_and_its_errors_are_kept() -> None:
    pieces: list[bytes] = []
    ended = run_program(sh("echo one; echo no >&2; seq 1 100000; exit 3"), ENVIRONMENT, 20, take=pieces.append)
    assert (ended.code, ended.out, ended.err) == (3, b"", b"no\n")
    assert b"".join(pieces) == b"one\n" + b"".join(b"%d\n" % n for n in range(1, 100_001)) and len(pieces) > 1
    with pytest.raises(Overdue):
        run_program(sh("echo begun; exec sleep 60"), ENVIRONMENT, 0.5, take=pieces.append)
    assert pieces[-1] == b"begun\n"


@pytest.mark.parametrize("then", ["exec sleep 60", "exit 0"], ids=["hangs", "has ended"])
def test_who_left_its_session_and_kept_its_output_is_not_waited_for(tmp_path: Path, then: str) -> None:
    began = time.monotonic()
    with pytest.raises(Overdue):
        run_program(sh(f"setsid sleep 60 & echo $! >{tmp_path}/child; {then}"), ENVIRONMENT, 0.5)
    assert time.monotonic() - began < 30
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_a_ctrl_c_in_any_moment_of_the_wait_leaves_the_command_waiting_for_its_child_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class InterruptedLock:
        """Popen's lock, with a Ctrl-C in the moment in which it is taken and not yet sure to be released."""

        def __init__(self) -> None:
            self.is_taken = False

        def acquire(self, _blocking: bool = True) -> bool:
            if self.is_taken:
                return False
            self.is_taken = True
            signal.raise_signal(signal.SIGINT)
            return True

        def release(self) -> None:
            self.is_taken = False

    class Child(subprocess.Popen[bytes]):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[call-overload]
            self._waitpid_lock = InterruptedLock()

    seconds: list[int] = []

    def count() -> None:
        seconds.append(1)
        assert len(seconds) < 5, "it waits for ever"

    monkeypatch.setattr(subprocess, "Popen", Child)
    before = signal.getsignal(signal.SIGINT)
    assert run_on_terminal([sys.executable, "-c", "raise SystemExit(130)"], meanwhile=count) == 130
    assert signal.getsignal(signal.SIGINT) is before


def test_a_bare_name_is_never_found_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quota").write_text("#!/bin/sh\n")
    (tmp_path / "quota").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert find_program("quota", {"PATH": ".::bin"}) is None
    assert find_program("./quota", {"PATH": str(tmp_path)}) is None
    assert find_program("quota", {"PATH": f".:{tmp_path}"}) == str(tmp_path / "quota")
    assert find_program("quota", {}) is None


def _is_gone(pid: int) -> bool:
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False
