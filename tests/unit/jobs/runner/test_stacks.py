from __future__ import annotations

import sys
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.jobs.runner import stacks
from opsctl.jobs.runner.stacks import command, take_stacks
from tests.unit.diagnosis.hangs.ranks import stack
from trainer.formats.attempt.error_file import GroupProgress, pieces
from trainer.formats.json_text import json_line


@pytest.mark.parametrize("is_late", [False, True])
def test_what_some_nodes_told_counts_also_where_others_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    parts = [list(pieces(stack(rank, "f" * 200))) for rank in (3, 1)]
    mixed = [piece for both in zip(*parts, strict=True) for piece in both]
    behind = GroupProgress(rank=1, group="0", enqueued=7)
    lines = "".join(json_line(piece) + "\n" for piece in (*mixed, behind)) + "srun: warning: x\n{\n"
    (tmp_path / "told").write_text(lines)
    srun = tmp_path / "srun"
    hangs = "exec sleep 60" if is_late else ""
    srun.write_text(f'#!/bin/sh\necho "$1 $2 $3" >{tmp_path}/asked\ncat {tmp_path}/told\n{hangs}\n')
    srun.chmod(0o755)
    monkeypatch.setattr(stacks, "STEP_WAIT_S", 0.5 if is_late else 60.0)
    taken = take_stacks(command(2), 4, {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert taken.stacks == (stack(1, "f" * 200), stack(3, "f" * 200))
    assert (taken.progress, taken.ranks) == ((behind,), 4)
    assert (tmp_path / "asked").read_text() == "--overlap --nodes=2 --ntasks=2\n"


def test_another_job_of_the_account_is_named_and_asked_by_this_very_python() -> None:
    words = command(3, job_id=77, native=True, flights_in=Path("/run/logs/attempts/77"))
    assert words[:4] == ["srun", "--overlap", "--jobid=77", "--nodes=3"]
    assert words[words.index("-m") - 2 :][:3] == [sys.executable, "-P", "-m"]
    assert words[-3:] == ["--native", "--flights-under", "/run/logs/attempts/77"]


def test_no_answer_at_all_is_an_error_in_sruns_words() -> None:
    with pytest.raises(OpsctlError, match=r"^srun .*PATH"):
        take_stacks(command(1), 2, {"PATH": "/nowhere"})
