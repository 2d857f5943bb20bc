"""A change that the trainer would refuse at the last checkpoint is refused before a chain is submitted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.core.errors import RunFileError
from opsctl.jobs.control.send_chain import ChainOptions
from opsctl.jobs.control.submit import check
from opsctl.run.checkpoints.resumption import layout_change
from opsctl.run.config.load import LoadedRun, load_run_file
from tests.tiny_run import write_checkpoint, write_data, write_run


def run_with_a_checkpoint(folder: Path, **changes: object) -> LoadedRun:
    run = load_run_file(write_run(folder, **changes), {})  # type: ignore[arg-type]
    write_checkpoint(folder, 10, 80)
    return run


def test_a_run_that_nobody_changed_goes_on(tmp_path: Path) -> None:
    assert check(run_with_a_checkpoint(tmp_path), ChainOptions()).warnings == ()


def test_another_learning_rate_is_refused_unless_the_trainer_is_told_which_to_believe(tmp_path: Path) -> None:
    run = run_with_a_checkpoint(tmp_path, lr="5e-4")
    with pytest.raises(RunFileError, match=r"learning rate 0.001 -> 0.0005\).* --override-lr-scheduler"):
        check(run, ChainOptions())
    check(run, ChainOptions(arguments=("--override-lr-scheduler",)))
    check(run, ChainOptions(arguments=("--finetune",)))


def test_a_longer_training_whose_decay_would_change_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="iterations 4000 -> 8000"):
        check(run_with_a_checkpoint(tmp_path, train_samples=8000), ChainOptions())


def test_other_nodes_load_the_checkpoint_into_another_layout(tmp_path: Path) -> None:
    run = run_with_a_checkpoint(tmp_path)
    assert layout_change(check(run, ChainOptions()).chain) is None
    assert layout_change(check(run, ChainOptions(nodes=4)).chain) == ("TP 1 x PP 1 x DP 4", "TP 1 x PP 1 x DP 8")


def test_other_tensor_and_pipeline_ranks_and_another_micro_batch_go_on_whatever_the_padding(tmp_path: Path) -> None:
    arguments = {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "micro_batch_size": 2,
        "make_vocab_size_divisible_by": 64,
    }
    words = [f"--{name.replace('_', '-')}={value}" for name, value in arguments.items()]
    asked = check(run_with_a_checkpoint(tmp_path), ChainOptions(arguments=tuple(words)))
    assert asked.warnings == ()
    assert layout_change(asked.chain) == ("TP 1 x PP 1 x DP 4", "TP 2 x PP 2 x DP 1")


def test_who_only_looks_at_the_script_is_warned(tmp_path: Path) -> None:
    asked = check(run_with_a_checkpoint(tmp_path, lr="5e-4"), ChainOptions(), files=False)
    assert "learning rate 0.001 -> 0.0005" in asked.warnings[-1]


def test_a_latest_that_names_nothing_is_refused_by_name(tmp_path: Path) -> None:
    run = run_with_a_checkpoint(tmp_path)
    (run.paths.checkpoints / "latest").write_text("global_step11")
    with pytest.raises(RunFileError, match=r"latest.*global_step11"):
        check(run, ChainOptions())


def test_another_seed_or_more_documents_are_refused_before_a_chain_waits(tmp_path: Path) -> None:
    run = run_with_a_checkpoint(tmp_path)
    manifest = tmp_path / "output" / "checkpoints" / "global_step10" / "manifest.json"
    source = {"documents": 8, "tokens": 512, "first_document": 0, "last_document": 8, "xxh64": "0" * 16}
    said = {**json.loads(manifest.read_text()), "training": {"seed": 1234, "train_data": [source]}}
    manifest.write_text(json.dumps(said))
    assert check(run, ChainOptions()).warnings == ()
    with pytest.raises(RunFileError, match=r"--seed 1234 -> 5: .*--allow-changed seed"):
        check(run, ChainOptions(arguments=("--seed", "5")))
    assert check(run, ChainOptions(arguments=("--seed", "5", "--allow-changed", "seed"))).warnings == ()
    write_data(tmp_path / "data", documents=9)
    with pytest.raises(RunFileError, match=r"documents 0 to 8 of 8 .* -> documents 0 to 9 of 9"):
        check(run, ChainOptions())


def test_a_named_checkpoint_must_be_there_and_not_before_the_latest(tmp_path: Path) -> None:
    run = run_with_a_checkpoint(tmp_path)
    with pytest.raises(RunFileError, match=r"--load-step 7: .*global_step7 .*: global_step10"):
        check(run, ChainOptions(arguments=("--load-step", "7")))
    write_checkpoint(tmp_path, 20, 160)
    with pytest.raises(RunFileError, match=r"global_step20 .*iteration 10"):
        check(run, ChainOptions(arguments=("--load-step", "10")))
    assert check(run, ChainOptions(arguments=("--load-step", "20"))).warnings == ()


def test_more_nodes_than_the_ramps_start_fits_are_taken_once_it_is_behind(tmp_path: Path) -> None:
    """Batches of 4 up to sample 100, then of 8; eight ranks fit the second alone."""
    path = write_run(tmp_path, nodes=4)
    path.write_text(path.read_text().replace("lr = 1e-3", "lr = 1e-3\nrampup_batch_size = [4, 4, 100]"))
    run = load_run_file(path, {})
    with pytest.raises(RunFileError, match="start of rampup_batch_size, 4 "):
        check(run, ChainOptions())
    write_checkpoint(tmp_path, 20, 80)
    with pytest.raises(RunFileError, match="rampup_batch_size at sample 80, 4 "):
        check(run, ChainOptions())
    write_checkpoint(tmp_path, 30, 120)
    assert check(run, ChainOptions()).run.layout.data == 8
