"""Counting which lines ran changes nothing that a command says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from coverage import CoverageData

ROOT = Path(__file__).resolve().parents[2]


def counted(folder: Path) -> subprocess.CompletedProcess[str]:
    """A process that counts into `folder`, imports a module of ours and says a word."""
    code = f"from tests import counting; counting.start({str(folder)!r}); import opsctl.core.errors; print('done')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)


def test_the_lines_that_ran_are_in_a_file_of_the_processs_own(tmp_path: Path) -> None:
    answer = counted(tmp_path)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "done\n", "")
    (file,) = tmp_path.iterdir()
    data = CoverageData(str(file))
    data.read()
    assert data.lines(str(ROOT / "opsctl" / "core" / "errors.py"))
    assert not data.lines(str(ROOT / "opsctl" / "account.py"))


def test_a_folder_that_takes_nothing_is_passed_over_in_silence() -> None:
    answer = counted(Path("/proc/nowhere"))
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "done\n", "")
