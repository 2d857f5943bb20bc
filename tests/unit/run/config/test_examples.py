"""The shipped examples say what the runs were, and every option in them is one the trainer has."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.shipped import templates_folder
from opsctl.run.config.checks import find_problems
from opsctl.run.config.load import load_run_file
from tests.tiny_run import expand

EXAMPLES = sorted((templates_folder() / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_trainer_takes_every_argument(path: Path) -> None:
    run = expand(load_run_file(path, {"six_ALL_CCFRWORK": "/work"}))
    assert run.options.num_layers == run.file.trainer["num_layers"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_only_the_data_of_the_examples_is_missing(path: Path) -> None:
    problems = find_problems(load_run_file(path, {})).problems
    assert all(problem.startswith("[data] data_path: ") for problem in problems)


def test_tr11_ships_as_it_was_run() -> None:
    file = load_run_file(templates_folder() / "examples" / "tr11-176B-ml.toml", {}).file
    slurm = file.slurm
    assert (slurm.nodes, slurm.gpus_per_node, slurm.time) == (48, 8, "100:00:00")
    assert (slurm.partition, slurm.constraint, slurm.reservation) == ("gpu_p5", "a100", "hug")
    assert (slurm.qos, slurm.account) == ("qos_gpu-gc", "six@a100")
    assert file.trainer["rampup_batch_size"] == [192, 16, 9_765_625]
    assert file.env["CUDA_LAUNCH_BLOCKING"] == "1"
    assert file.env["TORCHELASTIC_ERROR_FILE"] == "/tmp/torch-elastic-error.json"
    assert file.env["TRANSFORMERS_CACHE"] == "${six_ALL_CCFRWORK}/models"
    assert file.env["TRANSFORMERS_OFFLINE"] == file.env["HF_DATASETS_OFFLINE"] == "1"


def test_the_micro_batch_of_tr11_may_become_2() -> None:
    run = load_run_file(templates_folder() / "examples" / "tr11-176B-ml.toml", {})
    run.file.trainer["micro_batch_size"] = 2
    assert find_problems(run).problems == ()


def test_setup_test_n2_is_tr11_made_small() -> None:
    examples = templates_folder() / "examples"
    large = load_run_file(examples / "tr11-176B-ml.toml", {}).file
    small = load_run_file(examples / "setup-test-n2.toml", {}).file
    differing = {key for key in large.trainer if large.trainer[key] != small.trainer.get(key)}
    assert differing == {"pipeline_model_parallel_size", "num_layers", "hidden_size", "num_attention_heads"}
    assert small.data == large.data and small.env == large.env
