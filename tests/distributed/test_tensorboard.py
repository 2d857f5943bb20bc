"""TensorBoard's points of a training, read back from its own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import run_training, write_corpus

pytestmark = pytest.mark.distributed


def scalars(folder: Path) -> dict[str, list[tuple[int, Any]]]:
    """(step, value) of every point by tag."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    found: dict[str, list[tuple[int, Any]]] = {}
    (file,) = folder.glob("events.out.tfevents.*")
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, float(make_ndarray(value.tensor))))
    return found


def test_curves_have_bigsciences_tags_and_the_logs_values(pool: Pool, tmp_path: Path) -> None:
    options = {
        "data_path": [write_corpus(tmp_path)],
        "train_iters": 4,
        "eval_iters": 1,
        "eval_interval": 2,
        "log_params_norm": True,
        "log_batch_size_to_tensorboard": True,
        "log_validation_ppl_to_tensorboard": True,
        "tensorboard_dir": str(tmp_path / "tensorboard"),
    }
    seen = pool.run(2, run_training, options)[-1]
    assert seen.status == 0, seen.errors
    points = scalars(tmp_path / "tensorboard")
    assert points["lm-loss-training/lm loss"] == [(n, pytest.approx(seen.losses[n - 1])) for n in (1, 2, 3, 4)]
    assert [step for step, _ in points["lm-loss-training/lm loss vs samples"]] == [8, 16, 24, 32]
    assert [step for step, _ in points["lm-loss-training/lm loss vs tokens"]] == [128, 256, 384, 512]
    assert [step for step, _ in points["lm-loss-validation/valid/lm loss validation"]] == [2, 4]
    assert points["steps-vs-samples/y=steps,x=samples"] == [(8, 1.0), (16, 2.0), (24, 3.0), (32, 4.0)]
    assert points["iteration-time/world_size"][0] == (1, 2.0)
    assert points["batch-size/batch-size"][0] == (1, 8.0)
    # linear from 3e-3 at 0 to 0 at 32 samples, logged after the step
    assert points["learning-rate/learning-rate"][1] == (2, pytest.approx(1.5e-3))
    for tag in (
        "learning-rate/learning-rate vs samples",
        "learning-rate/learning-rate vs tokens",
        "lm-loss-training/lm loss vs gigaflos (without embeddings)",
        "grad-norm/grad-norm",
        "params-norm/params-norm",
        "steps-vs-samples/y=samples,x=steps",
        "steps-vs-tokens/y=steps,x=tokens",
        "iteration-time/iteration-time",
        "iteration-time/samples per second",
        "iteration-time/samples per second per replica",
        "iteration-time/tokens per second",
        "iteration-time/tokens per second per replica",
        "iteration-time/TFLOPs per gpu (estimated)",
        "lm-loss-validation/valid/lm loss validation ppl vs samples",
    ):
        assert tag in points


def test_curves_have_a_point_per_iteration_however_seldom_the_log_has_a_line(pool: Pool, tmp_path: Path) -> None:
    options = {
        "data_path": [write_corpus(tmp_path)],
        "train_iters": 6,
        "log_interval": 3,
        "tensorboard_dir": str(tmp_path / "tensorboard"),
    }
    seen = pool.run(1, run_training, options)[0]
    assert seen.status == 0, seen.errors
    points = scalars(tmp_path / "tensorboard")
    assert points["lm-loss-training/lm loss"] == [(n, pytest.approx(seen.losses[n - 1])) for n in range(1, 7)]
    assert [step for step, _ in points["grad-norm/grad-norm"]] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in points["iteration-time/iteration-time"]] == [3, 6]


def test_the_tensorboard_interval_spaces_the_points(pool: Pool, tmp_path: Path) -> None:
    options = {
        "data_path": [write_corpus(tmp_path)],
        "train_iters": 6,
        "tensorboard_log_interval": 2,
        "tensorboard_dir": str(tmp_path / "tensorboard"),
    }
    seen = pool.run(1, run_training, options)[0]
    assert seen.status == 0, seen.errors
    assert [step for step, _ in scalars(tmp_path / "tensorboard")["lm-loss-training/lm loss"]] == [2, 4, 6]


def shown(folder: Path) -> dict[str, list[int]]:
    """Return the steps of each tag as TensorBoard's own reader shows them, of all files together."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {tag: [point.step for point in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_what_is_trained_again_from_an_older_checkpoint_has_one_point_for_each_iteration(
    pool: Pool, tmp_path: Path
) -> None:
    curves = tmp_path / "tensorboard"
    options = {
        "data_path": [write_corpus(tmp_path)],
        "train_iters": 6,
        "save": str(tmp_path / "checkpoints"),
        "load": str(tmp_path / "checkpoints"),
        "save_interval": 2,
        "eval_iters": 1,
        "eval_interval": 2,
        "tensorboard_dir": str(curves),
    }
    older = [{"load_step": 4, "save": str(tmp_path / "4")}, {"load_step": 2, "save": str(tmp_path / "2")}]
    evaluation = {"load_step": 2, "save": None, "save_interval": None, "eval_only": True}
    changes: list[dict[str, Any]] = [{}, *older, evaluation]
    for more in changes:
        (seen,) = pool.run(1, run_training, {**options, **more})
        assert seen.status == 0, seen.errors
    steps = shown(curves)
    assert steps["lm-loss-training/lm loss"] == [1, 2, 3, 4, 5, 6]
    assert steps["lm-loss-training/lm loss vs samples"] == [8, 16, 24, 32, 40, 48]
    assert steps["lm-loss-training/lm loss vs tokens"] == [128 * n for n in range(1, 7)]
    # The file of 1 to 6, what of it was kept up to 4, and that of 5 and 6: TensorBoard does not read these names.
    assert len([one for one in curves.iterdir() if "tfevents" not in one.name]) == 3
