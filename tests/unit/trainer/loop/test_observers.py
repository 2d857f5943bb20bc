"""The observers' work at each step: lines of the log, points of curves, saves."""

from __future__ import annotations

import errno
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.facts import missing
from tests.unit.trainer.loop.steps import BATCH, step_at
from trainer.checkpoint.destination import Overtaken
from trainer.checkpoint.save import SaveTimes
from trainer.data.build import Datasets
from trainer.formats.checkpoint.history import Progress
from trainer.formats.logs.log_lines import CheckpointFailed, parse_checkpoint_line
from trainer.formats.logs.training_line import parse_training_line
from trainer.loop import rewind
from trainer.loop.evaluate import Evaluation, Evaluations
from trainer.loop.finite import NotFinite
from trainer.loop.log import Log
from trainer.loop.resuming import LastLoss
from trainer.loop.save import Saves
from trainer.loop.tensorboard import Curves, open_writer, open_writers
from trainer.parallel.agreement import Refusal
from trainer.recipe.options import Options, parse, to_arguments
from trainer.recipe.save_schedule import SavePhase, SaveSchedule
from trainer.recipe.sizes import Speed


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
    return Curves([points] if points else [], options_with(**changes), world_size=1, data_size=1, flops_per_sample=1.0)


def test_a_line_of_the_log_is_about_the_iterations_since_the_line_before() -> None:
    lines: list[str] = []
    log = Log(
        options_with(log_interval=2), 9, lambda n, s: Speed(n / s, 3.0, 0.25, n * 16 / s), lines.append, curves_to(None)
    )
    for iteration, loss, seconds in ((1, 4.0, 1.0), (2, 2.0, 3.0), (3, math.nan, 2.0), (4, 8.0, 2.0), (5, 1.0, 1.0)):
        log.after_step(step_at(iteration, loss, seconds))
    first, second = lines
    assert "iteration        2/       9 " in first and "lm loss: 3.000000E+00" in first
    assert "elapsed time per iteration (s): 2.00 " in first and "TFLOPs: 4.00 " in first  # 16 samples in 4 s
    assert first.endswith("| model TFLOPs: 3.00 | MFU (%): 25.00 | tokens per second per gpu: 64.0 |")
    assert "lm loss: 8.000000E+00" in second and "number of nan iterations:   1 " in second
    assert "params norm" not in first


def test_a_line_after_going_back_is_about_no_iteration_before_it() -> None:
    lines: list[str] = []
    log = Log(options_with(log_interval=2), 9, lambda n, s: Speed(n / s, 1.0, None, 1.0), lines.append, curves_to(None))
    log.after_step(step_at(3, 9.0, 5.0))
    log.after_going_back(step_at(2).progress)
    for iteration in (3, 4):
        log.after_step(step_at(iteration, 2.0, 1.0))
    (line,) = lines
    assert "lm loss: 2.000000E+00" in line and "elapsed time per iteration (s): 1.00 " in line


def test_what_was_skipped_on_request_is_counted_and_in_no_other_number() -> None:
    said: list[str] = []
    log = Log(options_with(log_interval=2), 9, lambda n, s: Speed(n / s, 1.0, None, 1.0), said.append, curves_to(None))
    loss = LastLoss()
    for iteration, is_skipped in ((1, False), (2, True), (3, True), (4, True), (5, False), (6, False)):
        step = step_at(iteration, 2.0, 1.0)
        for observer in (log, loss):
            observer.after_step(replace(step, result=None, seconds=0.0) if is_skipped else step)
    mixed, skipped, after = (parse_training_line(line) for line in said)
    assert mixed is not None and skipped is not None and after is not None
    assert (mixed.loss, mixed.grad_norm, mixed.seconds_per_iteration, mixed.samples_per_second) == (2.0, 1.5, 1.0, 8.0)
    assert (mixed.skipped_iterations, mixed.skipped_on_request, mixed.is_left_out) == (1, 1, False)
    assert (skipped.iteration, skipped.consumed_samples, skipped.learning_rate) == (4, 32, 1e-3)
    assert (skipped.skipped_iterations, skipped.skipped_on_request, skipped.is_left_out) == (2, 2, True)
    assert (skipped.loss, skipped.grad_norm, skipped.tflops, skipped.samples_per_second) == (None,) * 4
    assert (after.skipped_iterations, after.skipped_on_request) == (0, None)
    assert "skipped on request" not in said[2]
    assert loss() == 2.0


def test_the_norm_is_measured_only_where_a_line_or_a_point_needs_it() -> None:
    asked: list[int] = []
    changes = {"log_interval": 3, "log_params_norm": True, "tensorboard_dir": "t", "tensorboard_log_interval": 4}
    curves = curves_to(None, **changes)  # a rank without a writer has to ask as well: it is collective
    log = Log(options_with(**changes), 9, lambda *_: Speed(1.0, 1.0, None, 1.0), lambda _line: None, curves)
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

    def save(progress: Progress) -> SaveTimes:
        done.append(progress.iteration)
        return SaveTimes(12.5)

    saves = Saves(save, schedule.is_due, loaded, lines.append, curves_to(None))
    for iteration in range(1, 6):
        saves.after_step(step_at(iteration))
    saves.before_leaving(step_at(5).progress)
    assert done == saved
    assert lines == ["time (ms) | save-checkpoint: 12.50"] * len(saved)


class UnderWay:
    """A save that every rank has written when `written` says so, or at the fifth look; refused with its `problem`."""

    folder = "/c"
    looks = 0

    def __init__(self, iteration: int, done: list[str], problem: str = "") -> None:
        self.iteration, self.written, self._done, self._problem = iteration, False, done, problem

    def is_written(self) -> bool:
        self.looks += 1
        return self.written or self.looks == 5

    def publish(self) -> SaveTimes:
        self._done.append(f"published {self.iteration}" if not self._problem else f"failed {self.iteration}")
        if self._problem:
            raise Refusal(self._problem)
        return SaveTimes(1.0, 9.0)


class Beside:
    """A training that saves beside itself every other iteration, and what became of it."""

    def __init__(self, problems: dict[int, str] | None = None, leaves: bool = False) -> None:
        self.done: list[str] = []
        self.lines: list[str] = []
        self.under_way: list[UnderWay] = []
        self._problems = problems or {}
        begin: Any = self._begin
        self.saves = Saves(
            self._save, lambda at: at % 2 == 0, None, self.lines.append, curves_to(None), begin, lambda: leaves
        )

    def _save(self, progress: Progress) -> SaveTimes:
        self.done.append(f"saved {progress.iteration}")
        if progress.iteration in self._problems:
            raise Refusal(self._problems[progress.iteration])
        return SaveTimes(12.5)

    def _begin(self, progress: Progress) -> UnderWay:
        self.done.append(f"began {progress.iteration}")
        self.under_way.append(UnderWay(progress.iteration, self.done, self._problems.get(progress.iteration, "")))
        return self.under_way[-1]


def test_a_save_beside_the_training_is_published_after_the_first_step_that_finds_it_written() -> None:
    beside = Beside()
    for iteration in (1, 2, 3):
        beside.saves.after_step(step_at(iteration))
    assert beside.done == ["began 2"] and beside.lines == []
    beside.under_way[0].written = True
    beside.saves.after_step(step_at(4))
    assert beside.done == ["began 2", "published 2", "began 4"]
    assert beside.lines == ["time (ms) | save-checkpoint: 1.00 | save-checkpoint-background: 9.00"]


def test_one_that_is_due_while_another_is_under_way_waits_for_it_and_says_so() -> None:
    beside = Beside()
    for iteration in (1, 2, 3, 4):
        beside.saves.after_step(step_at(iteration))
    assert beside.done == ["began 2", "published 2", "began 4"]
    assert not missing(beside.lines[0], "iteration 2", "iteration 4")


def test_a_wish_to_leave_is_heard_while_one_waits_for_another() -> None:
    beside = Beside(leaves=True)
    for iteration in (1, 2, 3, 4):
        beside.saves.after_step(step_at(iteration))
    assert beside.done == ["began 2"]
    beside.saves.before_leaving(step_at(4).progress)
    assert beside.done == ["began 2", "published 2", "saved 4"]


def test_leaving_waits_for_the_one_under_way_and_saves_what_is_newer_at_once() -> None:
    beside = Beside()
    for iteration in (1, 2, 3):
        beside.saves.after_step(step_at(iteration))
    beside.saves.before_leaving(step_at(3).progress)
    assert beside.done == ["began 2", "published 2", "saved 3"]

    same = Beside()
    same.saves.after_step(step_at(2))
    same.saves.before_leaving(step_at(2).progress)
    assert same.done == ["began 2", "published 2"]


def test_one_failure_is_said_and_the_next_save_is_at_once_and_then_beside_again() -> None:
    beside = Beside({2: "cannot write x: No space left on device"})
    for iteration in range(1, 7):
        beside.saves.after_step(step_at(iteration))
        if beside.under_way:
            beside.under_way[-1].written = True
    assert beside.done == ["began 2", "failed 2", "saved 4", "began 6"]
    failed = parse_checkpoint_line(beside.lines[0])
    assert failed == CheckpointFailed(2, "/c", "cannot write x: No space left on device")


def test_two_failures_in_a_row_end_the_training() -> None:
    beside = Beside({2: "No space left on device", 4: "No space left on device"})
    with pytest.raises(Refusal, match="No space left"):
        for iteration in range(1, 7):
            beside.saves.after_step(step_at(iteration))
    assert beside.done == ["began 2", "failed 2", "saved 4"]


def test_one_that_meets_another_writer_ends_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = Beside()
    beside.saves.after_step(step_at(2))

    def overtaken(_self: UnderWay) -> SaveTimes:
        raise Overtaken("job 12 has taken the lease")

    monkeypatch.setattr(UnderWay, "publish", overtaken)
    beside.under_way[0].written = True
    with pytest.raises(Overtaken):
        beside.saves.after_step(step_at(3))


@pytest.mark.parametrize("problem", ["", "No space left on device"])
def test_who_asks_for_a_save_is_answered_when_it_is_published_or_has_failed(problem: str) -> None:
    beside = Beside({3: problem} if problem else None)
    answers: list[tuple[int, str]] = []

    def answer(iteration: int, why: str) -> None:
        answers.append((iteration, why))

    asked = step_at(3).progress
    assert beside.saves.when_asked_to_save(asked, answer)
    assert beside.saves.when_asked_to_save(asked, answer)
    asked.iteration = 5  # the training's own counters go on
    assert beside.done == ["began 3"] and answers == []
    beside.under_way[0].written = True
    beside.saves.after_step(step_at(5))
    assert answers == [(3, problem)] * 2
    assert beside.saves.when_asked_to_save(step_at(5).progress, answer)
    assert beside.done[-1] == ("saved 5" if problem else "began 5")


def test_who_asks_for_what_is_saved_already_is_answered_at_once() -> None:
    beside = Beside()
    beside.saves.after_step(step_at(2))
    beside.under_way[0].written = True
    beside.saves.after_step(step_at(3))
    answers: list[tuple[int, str]] = []
    assert beside.saves.when_asked_to_save(step_at(2).progress, lambda at, why: answers.append((at, why)))
    assert answers == [(2, "")] and beside.done == ["began 2", "published 2"]


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


def test_curves_go_on_in_a_file_of_their_own_after_going_back(tmp_path: Path) -> None:
    options = {"tensorboard_dir": str(tmp_path / "curves")}
    curves = curves_to(open_writer(options_with(**options)), **options)  # type: ignore[arg-type]
    curves.after_step(step_at(3))
    curves.after_going_back(step_at(1).progress)
    curves.after_step(step_at(2))
    curves.close()
    reader = EventAccumulator(str(tmp_path / "curves"))
    reader.Reload()
    assert [point.step for point in reader.Scalars("grad-norm/grad-norm")] == [2], "3 was trained again"


def test_an_event_file_that_vanishes_while_it_is_read_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "events.out.tfevents.1.node"
    monkeypatch.setattr(rewind, "event_files", lambda _folder: [gone])
    (writer,) = open_writers(options_with(tensorboard_dir=str(tmp_path)), step_at(1).progress)
    assert gone.name in capfd.readouterr().err
    writer.close()


def test_curves_that_cannot_be_cut_stay_as_they_are_with_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(options_with(tensorboard_dir=str(tmp_path)))
    for iteration in (1, 3):
        writer.add_scalar("grad-norm/grad-norm", 1.0, iteration)
    writer.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def no_links(*_names: Path) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr("os.link", no_links)
    with pytest.raises(OSError, match="no hard links"):
        rewind.set_aside_beyond(tmp_path, rewind.Point(1, 8, 128))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_training_that_went_back_goes_on_where_no_curve_can_be_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "curves").touch()
    curves = curves_to(Points(), tensorboard_dir=str(tmp_path / "curves"))
    curves.after_going_back(step_at(1).progress)
    assert f"--tensorboard-dir {tmp_path}/curves" in capfd.readouterr().err
    curves.after_step(step_at(2))
    curves.close()


def test_other_curves_than_tensorboards_go_on_too() -> None:
    """Those of wandb, which want no --tensorboard-dir."""
    curves = curves_to(Points())
    curves.after_going_back(step_at(1).progress)
    curves.after_step(step_at(2))
    curves.close()


def test_where_a_training_went_back_to_is_saved_again_if_it_leaves_there() -> None:
    saved: list[int] = []

    def save(progress: Progress) -> SaveTimes:
        saved.append(progress.iteration)
        return SaveTimes(1.0)

    saves = Saves(save, lambda _: False, 3, lambda _line: None, curves_to(None))
    progress = step_at(3).progress
    saves.before_leaving(progress)
    assert saved == []
    saves.after_going_back(progress)
    saves.before_leaving(progress)
    assert saved == [3]


def saved_with_losses(losses: dict[int, float], skipped: bool = False) -> tuple[list[int], list[str]]:
    """Train six iterations with a save every other one; `losses` where they are not 2. What was saved, and the log."""
    done: list[int] = []
    lines: list[str] = []
    loss = LastLoss()

    def save(progress: Progress) -> SaveTimes:
        done.append(progress.iteration)
        return SaveTimes(1.0)

    def not_finite() -> NotFinite | None:
        return None if loss.is_finite else NotFinite("the loss is not finite", ends_training=False)

    is_due = loss.postponing(lambda iteration: iteration % 2 == 0)
    saves = Saves(save, is_due, None, lines.append, curves_to(None), not_finite=not_finite, folder="/c")
    for iteration in range(1, 7):
        step = step_at(iteration, losses.get(iteration, 2.0), skipped=skipped)
        for observer in (loss, saves):
            observer.after_step(step)
    return done, [line for line in lines if "did not save" in line]


def test_an_fp16_step_whose_gradients_overflow_is_saved_as_ever() -> None:
    """Its update is skipped; its loss and the weights are finite."""
    assert saved_with_losses({}, skipped=True) == ([2, 4, 6], [])


def test_a_save_at_a_loss_that_is_no_number_is_made_up_for_once() -> None:
    done, lines = saved_with_losses({2: math.nan, 3: math.inf})
    assert done == [4, 6] and len(lines) == 1
    done, lines = saved_with_losses({2: math.nan})
    assert done == [3, 4, 6] and len(lines) == 1
    assert saved_with_losses({3: math.nan}) == ([2, 4, 6], [])


def test_weights_that_are_not_finite_end_the_training_where_a_save_is_due_after_the_one_under_way_is_published() -> (
    None
):
    beside = Beside()
    beside.saves.after_step(step_at(2))
    beside.saves._not_finite = lambda: NotFinite("rank 3 holds NaN", ends_training=True)
    with pytest.raises(Refusal, match="rank 3 holds NaN"):
        beside.saves.after_step(step_at(4))
    assert beside.done == ["began 2", "published 2"]
