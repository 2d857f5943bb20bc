"""A change that the trainer would refuse at the last checkpoint is refused before a chain waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.checkpoints.resumption import layout_change
from opsctl.control.request import Wish, check
from opsctl.errors import RunFileError
from opsctl.runs.load import LoadedRun, load_run_file
from tests.tiny_run import write_checkpoint, write_run


def run_with_a_checkpoint(folder: Path, **changes: object) -> LoadedRun:
    run = load_run_file(write_run(folder, **changes), {})  # type: ignore[arg-type]
    write_checkpoint(folder, 10, 80)
    return run


def test_a_run_that_nobody_changed_goes_on(tmp_path: Path) -> None:
    assert check(run_with_a_checkpoint(tmp_path), Wish()).warnings == ()


def test_another_learning_rate_is_refused_unless_the_trainer_is_told_which_to_believe(tmp_path: Path) -> None:
    run = run_with_a_checkpoint(tmp_path, lr="5e-4")
    with pytest.raises(RunFileError, match=r"learning rate 0.001 -> 0.0005\): give --override-lr-scheduler"):
        check(run, Wish())
    check(run, Wish(arguments=("--override-lr-scheduler",)))
    check(run, Wish(arguments=("--finetune",)))


def test_a_longer_training_whose_decay_would_change_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="total number of iterations 4000 -> 8000"):
        check(run_with_a_checkpoint(tmp_path, train_samples=8000), Wish())


def test_other_nodes_load_the_checkpoint_into_another_layout(tmp_path: Path) -> None:
    run = run_with_a_checkpoint(tmp_path)
    assert layout_change(check(run, Wish()).chain) is None
    assert layout_change(check(run, Wish(nodes=4)).chain) == ("TP 1 x PP 1 x DP 4", "TP 1 x PP 1 x DP 8")


def test_other_tensor_and_pipeline_ranks_and_another_micro_batch_go_on_whatever_the_padding(tmp_path: Path) -> None:
    arguments = {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "micro_batch_size": 2,
        "make_vocab_size_divisible_by": 64,
    }
    words = [f"--{name.replace('_', '-')}={value}" for name, value in arguments.items()]
    asked = check(run_with_a_checkpoint(tmp_path), Wish(arguments=tuple(words)))
    assert asked.warnings == ()
    assert layout_change(asked.chain) == ("TP 1 x PP 1 x DP 4", "TP 2 x PP 2 x DP 1")


def test_who_only_looks_at_the_script_is_warned(tmp_path: Path) -> None:
    asked = check(run_with_a_checkpoint(tmp_path, lr="5e-4"), Wish(), files=False)
    assert "learning rate schedule changed" in asked.warnings[-1]


def test_a_latest_that_names_nothing_is_refused_by_name(tmp_path: Path) -> None:
    run = run_with_a_checkpoint(tmp_path)
    (run.paths.checkpoints / "latest").write_text("global_step11")
    with pytest.raises(RunFileError, match="names global_step11, which is not in"):
        check(run, Wish())
