"""`opsctl checkpoints` on what each kind of training program saves, from the adoption to the next start."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from opsctl.run.checkpoints.adopted import adopt, prepare
from opsctl.run.config.load import load_run_file
from opsctl.run.config.program import program_of
from opsctl.run.programs import megatron_lm, nemo
from opsctl.run.programs.kind import Kind
from opsctl.run.state.identity import make_run_id
from opsctl.run.state.revisions import publish
from tests.printed_json import printed
from tests.tiny_run import ready
from tests.unit.cli.called import go_into, opsctl
from tests.unit.run.programs.test_kinds import MAKERS, a_core_checkpoint
from tests.unit.transfer.backups.backed_up_runs import another_disk

RUN_FILE = """
[run]
name = "{kind}"

[slurm]
nodes = 1
gpus_per_node = 1
time = "1:00:00"

[program]
kind = "{kind}"
command = ["torchrun", "train.py"]
checkpoints = "saved/*"

[retention]
last = 2
full_percent = 0

[backup]
to = ["{to}"]
full_every = 10
"""


def save(kind: Kind, folder: Path, step: int, is_core: bool) -> Path:
    """Save as the kind does; with megatron-core's folders if `is_core`."""
    if not is_core:
        return MAKERS[kind](folder, step)
    if kind is nemo.KIND:
        path = folder / f"gpt-step={step}"
        a_core_checkpoint(path / "weights")
        return path
    (folder / megatron_lm.TRACKER).write_text(str(step))
    return a_core_checkpoint(folder / f"iter_{step:07d}")


def shown(capsys: pytest.CaptureFixture[str]) -> dict[int, bool]:
    """Iteration -> complete, as listed."""
    capsys.readouterr()
    assert opsctl("checkpoints", "list", "--json") == 0
    found = printed("checkpoints list", capsys.readouterr().out)
    return {one["iteration"]: one["complete"] for one in found}


@pytest.mark.parametrize(
    ("kind", "is_core"),
    [*((kind, False) for kind in MAKERS), (megatron_lm.KIND, True), (nemo.KIND, True)],
    ids=lambda one: getattr(one, "name", ""),
)
def test_checkpoints_of_every_kind_are_verified_backed_up_restored_loaded_and_pruned(
    kind: Kind,
    is_core: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with another_disk() as disk:
        (tmp_path / "run.toml").write_text(RUN_FILE.format(kind=kind.name, to=disk))
        run = ready(load_run_file(tmp_path / "run.toml"))
        publish(run)
        make_run_id(run.paths)
        go_into(tmp_path, monkeypatch)
        program = program_of(run.file, tmp_path)
        assert program is not None and prepare(run.paths, program) is None
        own, checkpoints = tmp_path / "saved", run.paths.checkpoints
        own.mkdir()
        first = save(kind, own, 10, is_core)
        assert [one.iteration for one in adopt(run.paths, program, settled_s=0.0)] == [10]

        assert opsctl("checkpoints", "verify") == 0
        assert opsctl("checkpoints", "backup", "--to", str(disk), "--step", "10") == 0, capsys.readouterr()
        for step in (20, 30, 40):
            save(kind, own, step, is_core)
        adopt(run.paths, program, settled_s=0.0)
        shutil.rmtree(checkpoints / "global_step10")
        shutil.rmtree(first) if first.is_dir() else first.unlink()
        assert shown(capsys) == {20: True, 30: True, 40: True}

        assert opsctl("checkpoints", "restore", "--step", "10", "--from", str(disk)) == 0, capsys.readouterr()
        assert shown(capsys)[10] and opsctl("checkpoints", "verify", "--step", "10") == 0
        prepare(run.paths, program)  # a job that starts meanwhile
        assert opsctl("checkpoints", "repoint", "--to", "10") == 0, capsys.readouterr()
        resumed = prepare(run.paths, program)
        assert resumed == first
        judged = kind.judge(first)
        assert judged is not None and (judged.iteration, judged.problem) == (10, None)

        assert opsctl("checkpoints", "repoint", "--to", "40") == 0
        assert opsctl("checkpoints", "prune", "--yes") == 0
        assert shown(capsys) == {30: True, 40: True}
        assert not first.exists()

        largest = max((one for one in (checkpoints / "global_step30").rglob("*") if one.is_file()), key=os.path.getsize)
        largest.write_bytes(largest.read_bytes()[:-1] + b"\x7f")
        assert opsctl("checkpoints", "verify", "--step", "30") == 1
