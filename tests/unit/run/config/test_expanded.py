"""Test what tasks train: the run file's tables and the run's own paths, as the trainer understands them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opsctl.core.errors import RunFileError, UsageError
from tests.tiny_run import expand
from tests.unit.run.config.run_files import changed, loaded
from trainer.recipe.options import parse


def test_the_arguments_are_the_tables_and_the_runs_own_paths(tmp_path: Path) -> None:
    text = changed("lr = 3e-3", "lr = 3e-3\nbf16 = true\nfp16 = false\nrampup_batch_size = [16, 16, 320]")
    run = expand(loaded(tmp_path, text))
    line = " ".join(run.arguments)
    assert "--num-layers 4 --hidden-size 128" in line
    assert "--bf16 --rampup-batch-size 16 16 320" in line
    assert "--fp16" not in run.arguments
    assert f"--data-path {tmp_path}/data/corpus_text_document" in line
    assert f"--save {tmp_path}/output/checkpoints --load {tmp_path}/output/checkpoints" in line
    assert f"--kill-switch-path {tmp_path}/output/kill-switch" in line


def test_the_options_are_what_the_trainer_makes_of_the_arguments(tmp_path: Path) -> None:
    run = expand(loaded(tmp_path))
    assert run.options == parse(run.arguments, world_size=8)
    assert run.options.train_samples == 5120 and run.options.save_interval == 40


def test_the_layout_follows_the_nodes(tmp_path: Path) -> None:
    run = expand(loaded(tmp_path))
    assert (run.nodes, run.layout.world_size, run.layout.data) == (4, 8, 2)
    assert (run.on(2).nodes, run.on(2).layout.data, run.on(2).file) == (2, 1, run.file)
    assert run.on(2).on(None) == run and run.on(4) is run
    with pytest.raises(RunFileError, match=r"run\.toml: on 3 nodes: .*6 ranks"):
        run.on(3)


def test_the_arguments_of_a_chain_come_last_and_leave_the_revision_unchanged(tmp_path: Path) -> None:
    run = expand(loaded(tmp_path))
    chain = run.with_arguments(["--train_sam=640", "--tensor-model-parallel-size", "4"])
    assert chain.arguments == (*run.arguments, "--train_sam=640", "--tensor-model-parallel-size", "4")
    assert (chain.options.train_samples, chain.layout.tensor, chain.layout.data) == (640, 4, 1)
    assert (chain.file, chain.paths) == (run.file, run.paths)
    with pytest.raises(UsageError, match=r"after --: .*--tensor-model-parallel-size 3"):
        run.with_arguments(["--tensor-model-parallel-size", "3"])


def test_a_run_that_the_trainer_would_refuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match=r"run\.toml: --num-layers 5 "):
        expand(loaded(tmp_path, changed("num_layers = 4", "num_layers = 5")))
    with pytest.raises(RunFileError, match=r"\$\{NOWHERE\}"):
        expand(loaded(tmp_path, changed("data/corpus", "${NOWHERE}/corpus")))


@pytest.mark.parametrize(
    ("name", "fact"),
    [(b"two\nlines", "line"), (b"caf\xe9", "UTF-8")],
)
def test_a_run_in_a_folder_that_no_script_can_name_is_refused(tmp_path: Path, name: bytes, fact: str) -> None:
    folder = tmp_path / os.fsdecode(name)
    folder.mkdir()
    read = loaded(folder)
    assert read.paths.output == folder / "output"  # what only looks may look
    with pytest.raises(RunFileError, match=rf"run\.toml: \[run\] output = .*{fact}"):
        expand(read)
