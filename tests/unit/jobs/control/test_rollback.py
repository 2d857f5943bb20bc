"""Going back to an earlier checkpoint, and forward again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import parsed
from opsctl.jobs.control import rollback as control_rollback
from opsctl.jobs.control.prune import prune
from opsctl.jobs.control.rollback import EventFile, Point, RolledBack, rollback, undo
from opsctl.run.checkpoints import rollbacks
from opsctl.run.checkpoints.adopted import adopt, prepare
from opsctl.run.checkpoints.rollbacks import read_rollbacks, repoint
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.program import program_of
from opsctl.run.config.schema import ProgramTable, RunFile, RunTable, SlurmTable
from opsctl.run.state import lease
from tests.killed_in_python import killed_at_every_step
from tests.unit.jobs.control.checkpoint_runs import asks_nobody, care_run, latest, save, seen, there, two_at_once

LOSS = "lm-loss-training/lm loss"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with checkpoints of iteration 10 to 40, and one that was never finished."""
    return begun(tmp_path)


def begun(folder: Path, iterations: Sequence[int] = (10, 20, 30, 40)) -> Path:
    care_run(folder)
    for iteration in iterations:
        save(folder, iteration)
    (folder / "output" / "checkpoints" / "global_step50").mkdir()
    return folder


def no_curves(_folder: Path, _point: Point, _output: Path | None) -> Sequence[EventFile]:
    return ()


def read_curves(folder: Path, point: Point, output: Path | None) -> Sequence[EventFile]:
    """As `opsctl checkpoints rollback` reads them."""
    given = [f"--iteration={point.iteration}", f"--samples={point.samples}", f"--tokens={point.tokens}"]
    given += [f"--output={output}"] if output else []
    command = [sys.executable, "-m", "trainer.loop.rewind", f"--folder={folder}", *given]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return [parsed(line, EventFile) for line in lines]


def back(folder: Path, to: int = 20, **more: object) -> RolledBack:
    paths = RunPaths(folder / "output")
    return rollback(paths, "tiny", to, "a spike", more.pop("curves", no_curves), **more)  # type: ignore[arg-type]


def forward(folder: Path, number: int | None = None, **more: object) -> RolledBack:
    paths = RunPaths(folder / "output")
    return undo(paths, "tiny", number, more.pop("curves", no_curves), **more)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of the checkpoints and curves with what it holds."""
    output = folder / "output"
    files = [path for name in ("checkpoints", "tensorboard") for path in (output / name).rglob("*") if path.is_file()]
    return {
        str(path.relative_to(output)): path.read_bytes()
        for path in files
        if not path.name.startswith((".", "rollbacks"))
    }


class Killed(Exception):
    """Stands for the end of the process."""


def killed(*_arguments: object) -> None:
    raise Killed


def write_curve(folder: Path, first: int, last: int, loss: float) -> str:
    """The event file of one start, with points after each iteration as the trainer writes them; its name."""
    where = folder / "output" / "tensorboard"
    known = {path.name for path in where.iterdir()} if where.is_dir() else set()
    writer = SummaryWriter(str(where), filename_suffix=f".{first}")
    for iteration in range(first, last + 1):
        writer.add_scalar("steps-vs-samples/y=steps,x=samples", iteration, 8 * iteration)
        writer.add_scalar(LOSS, loss, iteration)
        writer.add_scalar(f"{LOSS} vs samples", loss, 8 * iteration)
        writer.add_scalar(f"{LOSS} vs tokens", loss, 128 * iteration)
        writer.add_scalar(f"{LOSS} vs gigaflos (without embeddings)", loss, 999 * iteration)
    writer.close()
    (made,) = {path.name for path in where.iterdir()} - known
    return made


def curve(folder: Path, tag: str = LOSS) -> list[tuple[int, float]]:
    read = EventAccumulator(str(folder / "output" / "tensorboard"))
    read.Reload()
    return [(point.step, point.value) for point in read.Scalars(tag)]


def test_what_came_after_is_set_aside_and_the_next_task_goes_on_from_there(folder: Path) -> None:
    before = contents(folder)
    done = back(folder)
    assert (done.to, done.before, done.checkpoints, done.number) == (20, 40, (30, 40, 50), 1)
    assert there(folder) == [10, 20] and latest(folder) == "global_step20"
    aside = folder / "output" / "set-aside" / "0001" / "checkpoints"
    assert {path.name for path in aside.iterdir()} == {"global_step30", "global_step40", "global_step50"}
    (line,) = read_rollbacks(seen(folder).paths)
    assert (line.to, line.before, line.why, line.set_aside) == (20, 40, "a spike", 1)
    brought = forward(folder)
    assert (brought.to, brought.before, brought.checkpoints) == (40, 20, (30, 40, 50))
    assert contents(folder) == before and there(folder) == [10, 20, 30, 40, 50]
    assert [(one.to, one.before) for one in read_rollbacks(seen(folder).paths)] == [(20, 40), (40, 20)]
    with pytest.raises(OpsctlError, match=r"rollback to undo.*none"):
        forward(folder)


def test_a_dry_run_and_one_with_nothing_later_change_nothing(folder: Path) -> None:
    before = contents(folder)
    assert back(folder, dry_run=True).checkpoints == (30, 40, 50)
    (folder / "output" / "checkpoints" / "global_step50").rmdir()
    assert back(folder, to=40).number is None
    assert contents(folder) == before and not (folder / "output" / "set-aside").exists()


def test_curves_show_nothing_of_what_was_abandoned_and_come_back_bit_for_bit(folder: Path) -> None:
    (kept, cut, whole) = (write_curve(folder, *part) for part in ((1, 15, 3.0), (16, 25, 2.0), (26, 45, 9.0)))
    before = contents(folder)
    done = back(folder, curves=read_curves)
    assert set(done.events) == {cut, whole}
    assert curve(folder) == [(step, 3.0) for step in range(1, 16)] + [(step, 2.0) for step in range(16, 21)]
    assert [step for step, _ in curve(folder, f"{LOSS} vs samples")] == [8 * step for step in range(1, 21)]
    assert len(curve(folder, f"{LOSS} vs gigaflos (without embeddings)")) == 20
    assert (folder / "output" / "tensorboard" / kept).read_bytes() == before[f"tensorboard/{kept}"]
    assert not (folder / "output" / "tensorboard" / whole).exists()
    newer = write_curve(folder, 21, 22, 1.5)
    assert curve(folder)[-2:] == [(21, 1.5), (22, 1.5)]
    with pytest.raises(OpsctlError, match=f"{newer} .*opsctl checkpoints rollback --to 20"):
        forward(folder, curves=read_curves)
    assert back(folder, curves=read_curves).number == 2  # as that says
    forward(folder, 1, curves=read_curves)
    assert contents(folder) == before
    assert (folder / "output" / "set-aside" / "0002" / "tensorboard" / newer).is_file()


def test_half_a_record_at_the_end_of_a_curve_is_no_hindrance(folder: Path) -> None:
    name = write_curve(folder, 1, 30, 3.0)
    path = folder / "output" / "tensorboard" / name
    path.write_bytes(path.read_bytes()[:-7])
    back(folder, curves=read_curves)
    assert [step for step, _ in curve(folder)] == list(range(1, 21))


def test_nobody_goes_back_while_somebody_trains_or_to_what_is_not_whole(folder: Path) -> None:
    paths = seen(folder).paths
    own = lease.take(paths, "attempt", 7, "ada", lambda _held: None)
    assert isinstance(own, lease.OwnLease)
    for change, why in ((back, "job 7 of ada"), (forward, "rollback to undo.*none")):
        with pytest.raises(OpsctlError, match=why):
            change(folder)
    own.end("done")
    for to, why in ((50, "global_step50"), (25, "global_step25")):
        with pytest.raises(OpsctlError, match=why):
            back(folder, to=to)
    assert there(folder) == [10, 20, 30, 40, 50] and not (folder / "output" / "set-aside").exists()


def test_checkpoints_of_a_new_branch_are_never_mixed_with_the_old_one(folder: Path) -> None:
    back(folder)
    save(folder, 30, consumed_valid_samples=5)
    with pytest.raises(OpsctlError, match=r"global_step30 .*opsctl checkpoints rollback --to 20"):
        forward(folder)
    assert back(folder).checkpoints == (30,)
    assert forward(folder, 1).checkpoints == (30, 40, 50)
    assert latest(folder) == "global_step40"


def test_a_latest_that_named_nothing_is_given_by_the_rollback(folder: Path) -> None:
    (folder / "output" / "checkpoints" / "latest").write_text("nonsense")
    assert back(folder).before is None and latest(folder) == "global_step20"
    assert forward(folder).to == 20 and there(folder) == [10, 20, 30, 40, 50]


def test_killed_at_any_step_the_next_command_finishes_it_and_loses_nothing(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", (20, 40))
    write_curve(folder, 1, 30, 3.0)
    before = contents(folder)
    paths = RunPaths(folder / "output")
    prepared = read_curves(paths.tensorboard, Point(20, 160, 2560), tmp_path / "prepared")
    (name,) = {one.name for one in prepared}
    size = len(before[f"tensorboard/{name}"])

    def copied(curves: Path, _point: Point, output: Path | None) -> Sequence[EventFile]:
        """As the program tells it and writes it, without starting one each time."""
        if (curves / name).stat().st_size != size:
            return ()
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            shutil.copy(tmp_path / "prepared" / name, output / name)
        return prepared

    for step in killed_at_every_step(lambda: back(folder, curves=copied)):
        told = rollbacks.read_set_aside(paths)
        if any(one.is_unfinished for one in told):
            with pytest.raises(OpsctlError, match="opsctl checkpoints rollback --to 20"):
                prune(seen(folder), lambda _line: None, asks_nobody)
            with pytest.raises(OpsctlError, match="opsctl checkpoints rollback --to 20"):
                repoint(paths, "tiny", 20, "")
        assert latest(folder) in ("global_step20", "global_step40")
        done = back(folder, curves=copied)
        assert bool(done.finished) == any(one.is_unfinished for one in told), step
        assert there(folder) == [20] and latest(folder) == "global_step20"
        assert contents(folder)[f"tensorboard/{name}"] == (tmp_path / "prepared" / name).read_bytes(), step
        forward(folder)
        assert contents(folder) == before, step
        assert read_rollbacks(paths)[-1].to == 40

    for step in killed_at_every_step(lambda: forward(folder)):
        done_of = {one.state for one in rollbacks.read_set_aside(paths)}
        if rollbacks.DONE not in done_of:
            back(folder, to=40)  # finishes the undoing; there is nothing later but what was never finished
            assert rollbacks.UNDOING not in {one.state for one in rollbacks.read_set_aside(paths)}
            forward(folder)
        else:
            forward(folder)
        assert contents(folder) == before, step
        back(folder, curves=copied)


def test_two_at_once_are_one_after_the_other(folder: Path) -> None:
    two_at_once(lambda: back(folder))
    assert len(rollbacks.read_set_aside(seen(folder).paths)) == 1 and there(folder) == [10, 20]


def test_one_that_was_cut_off_before_its_record_is_none_once_somebody_has_trained_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(control_rollback, "append_rollback", killed)
        with pytest.raises(Killed):
            back(folder)
    save(folder, 45)
    done = back(folder, to=45)
    assert done.finished and done.checkpoints == (50,), "only what is later than that"
    assert there(folder) == [10, 20, 30, 40, 45] and latest(folder) == "global_step45"
    assert [one.to for one in read_rollbacks(seen(folder).paths)] == [45]


def test_one_that_was_cut_off_after_its_record_is_finished_beside_what_was_trained_since(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the checkpoint that it went back to, so that what it abandons is still abandoned."""
    with monkeypatch.context() as dying:
        dying.setattr(control_rollback, "_move", killed)
        with pytest.raises(Killed):
            back(folder)
    assert latest(folder) == "global_step20"
    save(folder, 25)
    done = back(folder, to=25)
    assert done.finished and done.number is None, "nothing is later than 25 any more, and it is the latest"
    assert there(folder) == [10, 20, 25] and latest(folder) == "global_step25"
    assert [one.to for one in read_rollbacks(seen(folder).paths)] == [20]


def test_after_a_rollback_a_program_resumes_from_the_earlier_checkpoint(tmp_path: Path) -> None:
    table = ProgramTable(command=("torchrun", "train.py"), checkpoints="saved/step-*.pt")
    slurm = SlurmTable(nodes=1, gpus_per_node=1, time="1:00:00")
    program = program_of(RunFile(run=RunTable(name="tiny"), slurm=slurm, program=table), tmp_path)
    paths, saved = RunPaths(tmp_path / "output"), tmp_path / "saved"
    for place in (paths.output, saved):
        place.mkdir(mode=0o700)
    assert program is not None and prepare(paths, program) is None
    for step in (10, 20, 30):
        torch.save({"step": step}, saved / f"step-{step}.pt")
    adopt(paths, program, settled_s=0.0)
    assert back(tmp_path, 20).checkpoints == (30,)
    assert prepare(paths, program) == saved / "step-20.pt"
    assert (saved / "aside-step-30.pt").exists() and latest(tmp_path) == "global_step20"
