from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.cli.generate import _place
from opsctl.core.errors import UsageError


def test_a_checkpoint_a_folder_of_them_and_a_run_are_told_apart(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "global_step30").mkdir(parents=True)
    assert _place(str(checkpoints / "global_step30")) == (checkpoints, 30)
    (checkpoints / "latest").write_text("global_step30")
    assert _place(str(checkpoints)) == (checkpoints, None)
    (tmp_path / "run.toml").write_text(
        '[run]\nname = "said"\n[slurm]\nnodes = 1\ngpus_per_node = 1\ntime = "1:00:00"\n', encoding="utf-8"
    )
    (tmp_path / "output").mkdir()
    assert _place(str(tmp_path)) == (tmp_path / "output" / "checkpoints", None)
    with pytest.raises(UsageError):
        _place(str(checkpoints / "global_step31"))
