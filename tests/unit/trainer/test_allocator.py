"""A launcher begins once more with what glibc reads only then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.core.preload import ALLOCATOR, ALLOCATOR_ON_CPU

_PROGRAM = """\
import os, sys
from trainer.core.preload import begin_anew_with_allocator
print(os.getpid(), flush=True)
begin_anew_with_allocator()
print(os.environ["GLIBC_TUNABLES"], sys.argv[1:])
"""
pytestmark = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="nothing is set where there is a GPU")


def _lines(tmp_path: Path, more: dict[str, str]) -> list[str]:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    given = {name: value for name, value in os.environ.items() if name != ALLOCATOR}
    environment = {**given, "PYTHONPATH": str(Path(__file__).resolve().parents[3]), **more}
    command = [sys.executable, "-u", str(program), "--", "a word", ""]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()


def test_a_program_begins_anew_once_as_the_same_process_with_the_same_arguments(tmp_path: Path) -> None:
    first, second, said = _lines(tmp_path, {})
    assert first == second
    assert said == f"{ALLOCATOR_ON_CPU} {['--', 'a word', '']}"


def test_what_the_user_has_told_glibc_stays(tmp_path: Path) -> None:
    _, said = _lines(tmp_path, {ALLOCATOR: "glibc.malloc.arena_max=2"})
    assert said.startswith("glibc.malloc.arena_max=2 ")
