"""The script of a long command's job: golden file and shellcheck."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.core.errors import RunFileError
from opsctl.run.render.background import WARNING_S, CommandRequest, command_script, warning_s
from opsctl.slurm.cluster import Cluster
from tests.unit.run.render.test_scripts import LOCAL, shellcheck

AWKWARD = '/home/o\'neil/100% "mine" $HOME/output.txt'


def request(**changes: object) -> CommandRequest:
    values = {
        "job_name": "opsctl-checkpoints-backup",
        "comment": "opsctl errand=e5eed5ed job=2",
        "name": "e5eed5ed",
        "number": 2,
        "options": (("partition", "prepost"), ("account", "abc@cpu"), ("time", "10:00:00"), ("nice", "100")),
        "limit_s": 36_000,
        "output": AWKWARD,
        "cluster": LOCAL,
        "python": "/env/bin/python",
        "locale": "fr_FR.UTF-8",
    }
    return CommandRequest(**{**values, **changes})  # type: ignore[arg-type]


def test_the_script_is_the_golden_one_and_shellcheck_accepts_it(
    tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    text = command_script(request())
    golden("scripts/background.sh", text)
    shellcheck(text, tmp_path)
    shellcheck(command_script(request(cluster=Cluster(), locale="")), tmp_path)


def test_what_no_script_line_can_hold_is_refused() -> None:
    with pytest.raises(RunFileError, match="--gres=gpu:8"):
        command_script(request(options=(("partition", "a\n#SBATCH --gres=gpu:8"),)))


def test_slurm_warns_in_time_also_where_the_limit_is_short() -> None:
    assert [warning_s(limit) for limit in (60, 600, 36_000)] == [15, 150, WARNING_S]
