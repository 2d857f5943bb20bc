"""Commands that are asked about a folder whose file server never answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_run import write_run
from tests.unit.core.dirwalk.test_parallel import hung

__all__ = ["hung"]
#: They say so within seconds.
LONGEST_S = 60.0


#: opsctl, which waits for the file server that hangs for a second only.
IMPATIENT = (
    "import sys\nfrom opsctl.core.process import ask\n"
    "from opsctl.core.dirwalk import file_system\nfrom opsctl.cli import main\n"
    "file_system.ask = lambda command, _: ask(command, 1.0 if command[-1].endswith('/hung') else 60.0)\n"
    "sys.exit(main())"
)


def begun(*words: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", IMPATIENT, *words]
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(Path(__file__).parents[3])}
    environment.pop("OPSCTL_RUN", None)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def test_the_doctor_and_who_names_the_folder_are_told_and_wait_for_ever_nowhere(hung: Path, tmp_path: Path) -> None:
    path = write_run(tmp_path)
    path.write_text(path.read_text().replace('output = "output"', f'output = "{hung / "hung" / "output"}"'))
    named = str(hung / "hung")
    commands = [
        begun("doctor", folder=tmp_path),
        begun("perms", "check", "--group", "root", named, folder=tmp_path),
        begun("disk", "purge", "--days", "3", named, folder=tmp_path),
        # Who names none means the run's output folder.
        begun("disk", folder=tmp_path),
    ]
    try:
        for one in commands:
            said = "".join(one.communicate(timeout=LONGEST_S))
            assert one.returncode == 1 and named in said
    except subprocess.TimeoutExpired:
        pytest.fail("it hangs")
    finally:
        for one in commands:
            one.kill()
