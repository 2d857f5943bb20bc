"""Checkpoints of other programs become folders of hard links, and each start finds the right one."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import write_atomically
from opsctl.run.checkpoints import adopted
from opsctl.run.checkpoints.adopted import adopt, prepare, seconds_between_checkpoints
from opsctl.run.checkpoints.contents import lines_of, shown
from opsctl.run.checkpoints.inventory import last_checkpoint, latest_iteration
from opsctl.run.checkpoints.listing import listed, saved_at
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.program import Program, program_of
from opsctl.run.config.schema import ProgramTable, RunFile, RunTable, SlurmTable
from opsctl.run.programs.kind import SavedCheckpoint
from opsctl.run.state.checkpoint_readers import reading
from tests.unit.run.programs.test_kinds import a_lightning_checkpoint, a_transformers_checkpoint, half
from trainer.formats.checkpoint.manifest import check_checksums, checkpoint_folders, fault_of, read_manifest


class Saving:
    """A run of transformers in a folder."""

    def __init__(
        self, folder: Path, kind: str = "transformers", pattern: str = "out/checkpoint-*", started: bool = True
    ) -> None:
        table = ProgramTable(command=("torchrun", "train.py"), kind=kind, checkpoints=pattern, global_batch_size=4)
        slurm = SlurmTable(nodes=1, gpus_per_node=1, time="10")
        program = program_of(RunFile(run=RunTable(name="x"), slurm=slurm, program=table), folder)
        assert program is not None
        self.program: Program = program
        self.own, self.paths = folder / "out", RunPaths(folder / "output")
        self.paths.output.mkdir(mode=0o700)
        if started:
            assert prepare(self.paths, self.program) is None

    def save(self, step: int) -> Path:
        return a_transformers_checkpoint(self.own, step)

    def adopt(self) -> list[int]:
        return [one.iteration for one in adopt(self.paths, self.program, settled_s=0.0)]

    def adopted(self) -> list[int]:
        return [read_manifest(folder).iteration for folder in checkpoint_folders(self.paths.checkpoints)]


@pytest.fixture
def run(tmp_path: Path) -> Saving:
    return Saving(tmp_path)


def test_complete_ones_are_adopted_once_without_taking_room_and_the_newest_is_the_latest(run: Saving) -> None:
    first, second = run.save(10), run.save(20)
    (second / "trainer_state.json").unlink()
    assert (run.adopt(), run.adopt()) == ([10], [])
    folder = run.paths.checkpoints / "global_step10"
    assert fault_of(folder) is None and read_manifest(folder).consumed_train_samples == 40
    check_checksums(folder, read_manifest(folder))
    assert (folder / "model.safetensors").samefile(first / "model.safetensors")
    found = last_checkpoint(run.paths.checkpoints)
    assert found is not None and found.iteration == 10


def test_what_is_shown_of_one_claims_no_samples_that_are_not_known(run: Saving) -> None:
    run.save(10)
    run.adopt()
    lines = list(lines_of(shown(run.paths.checkpoints / "global_step10")))
    assert any("iteration 10" in line for line in lines)
    assert not any(word in line for line in lines for word in ("tokens", "unknown", "not recorded"))


def test_the_time_of_a_save_is_that_of_the_program_not_of_the_adoption(run: Saving) -> None:
    path = run.save(10)
    for file in path.iterdir():
        os.utime(file, (1_700_000_000, 1_700_000_000))
    run.adopt()
    at = saved_at(run.paths.checkpoints / "global_step10")
    assert at is not None and at.timestamp() == 1_700_000_000


def test_the_samples_of_a_program_without_a_batch_size_are_unknown(run: Saving) -> None:
    run.save(10)
    adopt(run.paths, replace(run.program, global_batch_size=None), settled_s=0.0)
    (one,) = listed(run.paths.checkpoints)
    assert one.consumed_samples is None


def test_one_that_was_just_changed_waits(run: Saving) -> None:
    run.save(10)
    assert adopt(run.paths, run.program, settled_s=60) == []


def test_those_that_the_program_removes_are_dropped_but_for_the_two_newest(run: Saving) -> None:
    for step in (10, 20, 30, 40):
        run.save(step)
    assert run.adopt() == [10, 20, 30, 40]
    for step in (10, 20, 40):
        run.own.joinpath(f"checkpoint-{step}").rename(run.own / f"gone-{step}")
    assert run.adopt() == [] and run.adopted() == [40, 30]


def test_a_step_that_was_trained_again_replaces_the_older_content(run: Saving) -> None:
    path = run.save(10)
    run.adopt()
    path.rename(run.own / "moved")
    torch.save({"another": 1}, run.save(10) / "optimizer.pt")
    assert run.adopt() == [10] and fault_of(run.paths.checkpoints / "global_step10") is None
    adopted_file = run.paths.checkpoints / "global_step10" / "optimizer.pt"
    assert adopted_file.samefile(run.own / "checkpoint-10" / "optimizer.pt")


def test_an_older_step_that_was_trained_again_stays(run: Saving) -> None:
    for step in (10, 20, 30):
        run.save(step)
    run.adopt()
    (run.own / "checkpoint-10").rename(run.own / "moved")
    torch.save({"another": 1}, run.save(10) / "optimizer.pt")
    assert run.adopt() == [10] and run.adopted() == [30, 20, 10]


def test_a_start_sets_a_torn_newest_one_aside_and_resumes_from_the_complete_one(run: Saving) -> None:
    complete = run.save(10)
    half(run.save(20) / "optimizer.pt")
    assert prepare(run.paths, run.program) == complete
    assert sorted(one.name for one in run.own.iterdir()) == ["aside-checkpoint-20", "checkpoint-10"]
    assert run.program.resume_arguments(complete) == ("--resume_from_checkpoint", str(complete))


def test_a_start_puts_back_one_that_was_damaged_after_its_adoption(run: Saving) -> None:
    newest = run.save(10)
    run.adopt()
    whole = (newest / "optimizer.pt").read_bytes()
    (newest / "optimizer.pt").unlink()
    (newest / "optimizer.pt").write_bytes(whole[:20])
    assert prepare(run.paths, run.program) == newest
    assert (newest / "optimizer.pt").read_bytes() == whole
    assert (run.own / "aside-checkpoint-10" / "optimizer.pt").stat().st_size == 20


def test_a_start_puts_back_what_was_removed_and_a_first_start_has_nothing(run: Saving) -> None:
    assert prepare(run.paths, run.program) is None
    path = run.save(10)
    run.adopt()
    for one in path.iterdir():
        one.unlink()
    path.rmdir()
    assert prepare(run.paths, run.program) == path
    assert run.program.kind.judge(path).problem is None  # type: ignore[union-attr]


def test_after_a_rollback_the_program_finds_no_later_one(run: Saving) -> None:
    for step in (10, 20):
        run.save(step)
    run.adopt()
    aside = run.paths.set_aside / "0001" / "checkpoints"
    aside.mkdir(parents=True)
    (run.paths.checkpoints / "global_step20").rename(aside / "global_step20")
    (run.paths.checkpoints / "latest").write_text("global_step10")
    assert prepare(run.paths, run.program) == run.own / "checkpoint-10"
    assert latest_iteration(run.paths.checkpoints) == 10
    assert (run.own / "aside-checkpoint-20").is_dir()


def test_checkpoints_that_are_older_than_the_run_are_not_its_own(tmp_path: Path) -> None:
    run = Saving(tmp_path, started=False)
    old = run.save(10)
    with pytest.raises(OpsctlError, match=r"existing = .continue."):
        prepare(run.paths, run.program)
    assert run.adopted() == [] and old.is_dir()
    assert prepare(run.paths, replace(run.program, existing="aside")) is None
    assert run.adopted() == [] and sorted(one.name for one in run.own.iterdir()) == ["aside-checkpoint-10"]


def test_a_run_continues_from_an_older_checkpoint_if_the_user_says_so(tmp_path: Path) -> None:
    run = Saving(tmp_path, started=False)
    old = run.save(10)
    assert prepare(run.paths, replace(run.program, existing="continue")) == old and run.adopted() == [10]
    assert prepare(run.paths, run.program) == old


def test_what_an_attempt_saved_that_was_lost_at_once_is_the_runs_own(run: Saving) -> None:
    own = run.save(10)
    assert prepare(run.paths, run.program) == own


def test_another_pattern_does_not_take_in_older_checkpoints(run: Saving) -> None:
    a_transformers_checkpoint(run.own.parent / "before", 500)
    other = replace(run.program, checkpoints=str(run.own.parent / "before" / "checkpoint-*"))
    with pytest.raises(OpsctlError, match="500"):
        prepare(run.paths, other)


def test_a_program_without_a_pattern_starts_and_has_no_checkpoints(run: Saving) -> None:
    run.save(10)
    unknown = replace(run.program, checkpoints=None)
    assert prepare(run.paths, unknown) is None and prepare(run.paths, unknown) is None


def test_a_changed_pattern_sets_none_of_the_runs_own_aside(run: Saving) -> None:
    run.save(10)
    run.adopt()
    own = run.save(20)  # by an attempt that was lost before the adoption
    other = replace(run.program, checkpoints=str(run.own / "checkpoint-[0-9]*"), existing="aside")
    assert prepare(run.paths, other) == own


def test_what_is_saved_after_a_repoint_is_the_latest_again(run: Saving) -> None:
    for step in (10, 20, 30):
        run.save(step)
    run.adopt()
    (run.paths.checkpoints / "latest").write_text("global_step10")
    assert prepare(run.paths, run.program) == run.own / "checkpoint-10"
    torch.save({"another": 1}, run.save(20) / "optimizer.pt")
    assert run.adopt() == [20] and latest_iteration(run.paths.checkpoints) == 20
    assert prepare(run.paths, run.program) == run.own / "checkpoint-20"


def test_a_start_puts_back_an_older_one_that_was_chosen_and_that_the_program_has_removed(run: Saving) -> None:
    for step in (10, 20, 30):
        run.save(step)
    run.adopt()
    shutil.rmtree(run.own / "checkpoint-10")
    (run.paths.checkpoints / "latest").write_text("global_step10")
    assert prepare(run.paths, run.program) == run.own / "checkpoint-10"
    assert (run.own / "checkpoint-10" / "optimizer.pt").exists()


def test_one_that_was_set_aside_stays_so_where_the_pattern_matches_any_name(tmp_path: Path) -> None:
    run = Saving(tmp_path, "command", "saved/*.pt", started=False)
    (tmp_path / "saved").mkdir()
    torch.save({"step": 5}, tmp_path / "saved" / "5.pt")
    aside = replace(run.program, existing="aside")
    assert (prepare(run.paths, aside), prepare(run.paths, aside), run.adopt()) == (None, None, [])


def test_what_a_stop_loses_is_said_in_minutes_of_work(run: Saving) -> None:
    assert seconds_between_checkpoints(run.paths, 10.0) is None
    run.save(10)
    run.save(130)
    run.adopt()
    lost_s = seconds_between_checkpoints(run.paths, 10.0)
    assert lost_s == 1200 and "up to 20 min of work" in run.program.lacks(lost_s)[0]
    assert not any("No save" in text for text in replace(run.program, stop="hook").lacks(lost_s))


def test_files_that_cannot_be_linked_are_named_and_nothing_is_left(
    run: Saving, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run.save(10)

    def refuse(source: Path, target: Path) -> None:
        raise OSError(18, os.strerror(18), str(source))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OpsctlError, match="file system"):
        run.adopt()
    assert run.adopted() == [] and list(run.paths.checkpoints.iterdir()) == [] and path.is_dir()


def test_paths_may_have_blanks_quotes_and_brackets(tmp_path: Path) -> None:
    folder = tmp_path / "my 'own' \"run\" [1]"
    folder.mkdir()
    run = Saving(folder, "command", "it's saved/step *.pt")
    path = folder / "it's saved" / "step 5.pt"
    path.parent.mkdir()
    torch.save({"step": 5}, path)
    assert run.adopt() == [5] and prepare(run.paths, run.program) == path


def test_a_start_passes_over_a_torn_newest_one_of_every_kind(tmp_path: Path) -> None:
    run = Saving(tmp_path, "lightning", "logs/*/*.ckpt")
    complete = a_lightning_checkpoint(tmp_path / "logs" / "version_0", 10)
    half(a_lightning_checkpoint(tmp_path / "logs" / "version_0", 20))
    assert prepare(run.paths, run.program) == complete
    assert run.program.resume_arguments(complete) == ("--ckpt_path", str(complete))


def test_a_pattern_that_matches_thousands_of_other_folders_finds_the_checkpoints(tmp_path: Path) -> None:
    run = Saving(tmp_path, "transformers", "out/*")
    for number in range(3000):
        (run.own / f"profile-{number}").mkdir(parents=True)
    run.save(10)
    assert run.adopt() == [10] and run.adopt() == []


def test_a_disk_that_fills_up_before_the_latest_is_written_loses_no_checkpoint(
    run: Saving, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = run.save(10), run.save(20)
    refused: list[Path] = []

    def refuse(root: Path, path: Path, text: str) -> None:
        if text == "global_step20" and not refused:
            refused.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_atomically(root, path, text)

    monkeypatch.setattr(adopted, "write_atomically", refuse)
    with pytest.raises(OSError, match="No space"):
        run.adopt()
    assert run.adopted() == [10]
    assert prepare(run.paths, run.program) == second and first.is_dir()
    assert latest_iteration(run.paths.checkpoints) == 20


def test_a_full_disk_leaves_nothing_half_adopted(tmp_path: Path) -> None:
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", tmp_path]).returncode:
        pytest.skip("needs the right to mount")
    try:
        run = Saving(tmp_path)
        path = run.save(10)
        filler = tmp_path / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096) == 4096:
                pass
        with pytest.raises(OpsctlError, match="No space left") as refused:
            run.adopt()
        assert "file system of" not in str(refused.value)
        assert run.adopted() == [] and not list(run.paths.checkpoints.glob("*"))
        filler.unlink()
        assert run.adopt() == [10] and prepare(run.paths, run.program) == path
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_single_files_are_adopted_too(tmp_path: Path) -> None:
    run = Saving(tmp_path, "command", "saved/step-*.pt")
    (tmp_path / "saved").mkdir()
    torch.save({"step": 5}, tmp_path / "saved" / "step-5.pt")
    assert run.adopt() == [5]
    (tmp_path / "saved" / "step-5.pt").unlink()
    assert prepare(run.paths, run.program) == tmp_path / "saved" / "step-5.pt"
    assert (tmp_path / "saved" / "step-5.pt").is_file()


def test_two_checkpoints_of_the_same_step_are_adopted_once(tmp_path: Path) -> None:
    run = Saving(tmp_path, "lightning", "logs/*.ckpt")
    numbered = a_lightning_checkpoint(tmp_path / "logs", 10)
    a_lightning_checkpoint(tmp_path / "logs", 10, "last.ckpt")
    assert (run.adopt(), run.adopt()) == ([10], [])
    a_lightning_checkpoint(tmp_path / "logs", 20, "last.ckpt")
    assert (run.adopt(), run.adopt(), run.adopted()) == ([20], [], [20, 10])
    assert prepare(run.paths, run.program) == tmp_path / "logs" / "last.ckpt" and numbered.is_file()


def test_a_link_to_a_checkpoint_is_no_checkpoint(tmp_path: Path) -> None:
    run = Saving(tmp_path, "lightning", "logs/*.ckpt")
    saved = a_lightning_checkpoint(tmp_path / "logs", 10)
    (tmp_path / "logs" / "last.ckpt").symlink_to(saved)
    assert (run.adopt(), run.adopt()) == ([10], []) and prepare(run.paths, run.program) == saved


def test_a_file_that_the_program_writes_over_is_kept_as_it_was(tmp_path: Path) -> None:
    run = Saving(tmp_path, "lightning", "logs/*.ckpt")
    last = a_lightning_checkpoint(tmp_path / "logs", 10, "last.ckpt")
    assert run.adopt() == [10]
    half(last)  # a save that was interrupted, into the same file
    assert prepare(run.paths, run.program) == last
    assert run.program.kind.judge(last).problem is None  # type: ignore[union-attr]
    half(last)
    kept = run.paths.checkpoints / "global_step10"
    check_checksums(kept, read_manifest(kept))
    assert prepare(run.paths, run.program) == last and run.adopted() == [10]


def restored(folder: Path) -> None:
    """Make an adopted checkpoint what a restore from a backup makes of it: files of its own, written now."""
    for file in folder.iterdir():
        data = file.read_bytes()
        file.unlink()
        file.write_bytes(data)


def test_a_restored_checkpoint_stays_until_it_is_chosen_and_is_no_new_save_then(run: Saving) -> None:
    for step in (10, 20, 30, 40):
        run.save(step)
    run.adopt()
    restored(run.paths.checkpoints / "global_step10")
    for step in (10, 20):
        shutil.rmtree(run.own / f"checkpoint-{step}")
    assert prepare(run.paths, run.program) == run.own / "checkpoint-40" and run.adopted() == [40, 30, 10]
    (run.paths.checkpoints / "latest").write_text("global_step10")
    assert prepare(run.paths, run.program) == run.own / "checkpoint-10"
    assert run.adopt() == [] and run.adopted() == [40, 30, 10]


def test_with_a_policy_of_retention_prune_alone_removes_what_the_program_has_removed(run: Saving) -> None:
    for step in (10, 20, 30, 40):
        run.save(step)
    run.adopt()
    shutil.rmtree(run.own / "checkpoint-10")
    assert adopt(run.paths, replace(run.program, prunes=True), settled_s=0.0) == [] and 10 in run.adopted()


def test_what_a_command_is_sending_stays_though_the_program_has_removed_it(run: Saving) -> None:
    for step in (10, 20, 30, 40):
        run.save(step)
    run.adopt()
    shutil.rmtree(run.own / "checkpoint-10")
    with reading(run.paths, 10, "backup"):
        assert run.adopt() == [] and 10 in run.adopted()
    assert run.adopt() == [] and 10 not in run.adopted()


def test_after_a_move_the_checkpoint_is_put_back_where_the_program_is_now(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    before = Saving(tmp_path / "before")
    before.save(10)
    before.adopt()
    shutil.rmtree(before.own)
    (tmp_path / "before").rename(tmp_path / "now")
    paths = RunPaths(tmp_path / "now" / "output")
    program = replace(before.program, checkpoints=str(tmp_path / "now" / "out" / "checkpoint-*"))
    assert prepare(paths, program) == tmp_path / "now" / "out" / "checkpoint-10"
    assert adopt(paths, program, settled_s=0.0) == [] and not (tmp_path / "before").exists()


def test_nanogpts_single_file_is_kept_at_each_step_and_put_back_whole(tmp_path: Path) -> None:
    run = Saving(tmp_path, "command", "out/ckpt.pt")
    run.own.mkdir()
    path = run.own / "ckpt.pt"
    for step in (250, 500, 750):
        torch.save({"model": {"w": torch.zeros(2)}, "iter_num": step}, path)
        assert run.adopt() == [step]
    assert run.adopt() == [] and run.adopted() == [750, 500]
    half(path)
    assert prepare(run.paths, run.program) == path and run.program.kind.judge(path) == SavedCheckpoint(750, path)
    (run.paths.checkpoints / "latest").write_text("global_step500")
    assert prepare(run.paths, run.program) == path and run.program.kind.judge(path) == SavedCheckpoint(500, path)
