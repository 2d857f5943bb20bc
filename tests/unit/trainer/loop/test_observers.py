"""What each observer does with steps: lines of the log, points of curves, saves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainer.loop.steps import BATCH, step_at
from trainer.data.build import Datasets
from trainer.formats.progress import Progress
from trainer.loop.evaluate import Evaluation, Evaluations
from trainer.loop.log import Log
from trainer.loop.save import Saves
from trainer.loop.tensorboard import Curves, open_writer
from trainer.recipe.options import Options, parse, to_arguments
from trainer.recipe.save_schedule import SavePhase, SaveSchedule


def options_with(**changes: Any) -> Options:
    shape = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 8, "seq_length": 16}
    training = {"micro_batch_size": 2, "global_batch_size": BATCH, "lr": 1e-3, "train_iters": 9}
    return parse(to_arguments({**shape, **training, **changes}), 1)


class Points:
    """A writer that remembers."""

    def __init__(self) -> None:
        self.added: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.added.append((tag, value, step))

    def flush(self) -> None: ...

    def close(self) -> None: ...


def curves_to(points: Points | None, **changes: Any) -> Curves:
    return Curves(points, options_with(**changes), world_size=1, data_size=1, flops_per_sample=1.0)


def test_a_line_of_the_log_is_about_the_iterations_since_the_line_before() -> None:
    lines: list[str] = []
    log = Log(
        options_with(log_interval=2), 9, lambda samples, seconds: samples / seconds, lines.append, curves_to(None)
    )
    for iteration, loss, seconds in ((1, 4.0, 1.0), (2, 2.0, 3.0), (3, math.nan, 2.0), (4, 8.0, 2.0), (5, 1.0, 1.0)):
        log.after_step(step_at(iteration, loss, seconds))
    first, second = lines
    assert "iteration        2/       9 " in first and "lm loss: 3.000000E+00" in first
    assert "elapsed time per iteration (s): 2.00 " in first and "TFLOPs: 4.00 " in first  # 16 samples in 4 s
    assert "lm loss: 8.000000E+00" in second and "number of nan iterations:   1 " in second
    assert "params norm" not in first


def test_the_norm_is_measured_only_where_a_line_or_a_point_needs_it() -> None:
    asked: list[int] = []
    changes = {"log_interval": 3, "log_params_norm": True, "tensorboard_dir": "t", "tensorboard_log_interval": 4}
    curves = curves_to(None, **changes)  # a rank without a writer has to ask as well: it is collective
    log = Log(options_with(**changes), 9, lambda *_: 1.0, lambda _line: None, curves)
    for iteration in range(1, 13):

        def measured(iteration: int = iteration) -> float:
            asked.append(iteration)
            return 1.0

        step = step_at(iteration, measured_norm=measured)
        log.after_step(step)
        curves.after_step(step)
    assert asked == [3, 4, 6, 8, 9, 12]


def test_curves_have_a_gap_where_the_loss_is_no_number() -> None:
    points = Points()
    curves = curves_to(points, tensorboard_dir="t")
    curves.after_step(step_at(1, loss=math.inf))
    curves.after_step(step_at(2, loss=2.5))
    assert [(value, at) for tag, value, at in points.added if tag == "lm-loss-training/lm loss"] == [(2.5, 2)]
    assert [at for tag, _, at in points.added if tag == "grad-norm/grad-norm"] == [1, 2]


def every(interval: int) -> SaveSchedule:
    return SaveSchedule((SavePhase(interval),))


@pytest.mark.parametrize(
    ("schedule", "loaded", "saved"),
    [
        (every(2), None, [2, 4, 5]),
        (SaveSchedule(), None, [5]),
        (every(5), None, [5]),
        (SaveSchedule(), 5, []),
        (every(4), 4, [5]),
        (SaveSchedule((SavePhase(1, 2), SavePhase(4)), frozenset({3})), 1, [2, 3, 4, 5]),
    ],
)
def test_each_iteration_is_saved_once(schedule: SaveSchedule, loaded: int | None, saved: list[int]) -> None:
    done: list[int] = []
    lines: list[str] = []

    def save(progress: Progress) -> float:
        done.append(progress.iteration)
        return 12.5

    saves = Saves(save, schedule.is_due, loaded, lines.append, curves_to(None))
    for iteration in range(1, 6):
        saves.after_step(step_at(iteration))
    saves.before_leaving(step_at(5).progress)
    assert done == saved
    assert lines == ["time (ms) | save-checkpoint: 12.50"] * len(saved)


def test_evaluations_go_on_in_the_validation_data_where_the_last_one_ended() -> None:
    lines: list[str] = []
    begun: list[tuple[list[str], int]] = []
    dataset: Any = object()

    def evaluated(groups: Any, first_sample: int) -> Evaluation:
        begun.append((list(groups), first_sample))
        return Evaluation(dict.fromkeys(groups, 1.0), 7.0)

    datasets = Datasets(train=None, valid={"valid": dataset}, test={"test": dataset})
    options = options_with(eval_iters=3, eval_interval=2)
    evaluations = Evaluations(options, datasets, evaluated, lines.append, curves_to(None))
    evaluations.when_finished(Progress.none())
    assert begun == []  # nothing was trained, so there is nothing new to say
    counted = Progress.none()
    for iteration in range(1, 5):
        step = step_at(iteration)
        step.progress.consumed_valid_samples = counted.consumed_valid_samples
        evaluations.after_step(step)
        counted = step.progress
    evaluations.when_finished(counted)
    each = 3 * BATCH
    assert begun == [(["valid"], 0), (["valid"], each), (["valid"], 2 * each), (["test"], 0)]
    said = [line.splitlines()[1].split(" | ")[0].strip() if "\n" in line else line for line in lines]
    assert said == [
        *("valid loss at iteration 2", "time (ms) | evaluation: 7.00"),
        *("valid loss at iteration 4", "time (ms) | evaluation: 7.00"),
        *("valid loss at the end of training for val data", "test loss at the end of training for test data"),
    ]


def test_curves_go_on_in_a_folder_that_was_moved(tmp_path: Path) -> None:
    folder, moved = tmp_path / "out" / "tensorboard", tmp_path / "moved"
    writer = open_writer(options_with(tensorboard_dir=str(folder)))
    writer.add_scalar("lm-loss-training/lm loss", 1.0, 1)
    writer.flush()
    (events,) = folder.iterdir()
    before = events.stat().st_size
    folder.parent.rename(moved)
    writer.add_scalar("lm-loss-training/lm loss", 2.0, 2)
    writer.close()
    assert (moved / "tensorboard" / events.name).stat().st_size > before and not folder.exists()
