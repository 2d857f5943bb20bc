"""The loop: when it leaves, and what it hands to observers that it knows nothing of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.trainer.loop.steps import BATCH, SEQUENCE, step_at
from trainer.formats.leave_lines import Reason
from trainer.formats.log_lines import parse_stamp
from trainer.formats.progress import Progress
from trainer.loop.hard_end import HARD_END_AFTER_S, HardEnd
from trainer.loop.observer import Observer, Step
from trainer.loop.train import Training, train
from trainer.recipe.lengths import Lengths
from trainer.recipe.options import parse, to_arguments
from trainer.recipe.schedule import LearningRateSchedule


class Watcher(Observer):
    """An observer of its own: writes down what it is told, in a diary that it shares."""

    def __init__(self, name: str, diary: list[str]) -> None:
        self.name, self.diary = name, diary
        self.steps: list[Step] = []

    def after_step(self, step: Step) -> None:
        self.steps.append(step)
        self.diary.append(f"{self.name}: {step.progress.iteration}")

    def before_leaving(self, progress: Progress) -> None:
        self.diary.append(f"{self.name}: leaving at {progress.iteration}")

    def when_finished(self, progress: Progress) -> None:
        self.diary.append(f"{self.name}: finished")

    def close(self) -> None:
        self.diary.append(f"{self.name}: closed")


class Breaks(Observer):
    def after_step(self, step: Step) -> None:
        raise RuntimeError("broken")


class Counting:
    """Stands for DeepSpeed's engine: each step's loss is its number."""

    def __init__(self) -> None:
        self.optimizer = SimpleNamespace(param_groups=[{"lr": None}])
        self.module = SimpleNamespace(has_dropout=False, masks_labels=False, begin_step=lambda: None)
        self.micro_batches = BATCH // 2
        self.skipped_steps = 0
        self.steps = 0

    def train_batch_size(self) -> int:
        return BATCH

    def train_batch(self, data_iter: object) -> float:
        assert data_iter is None
        self.steps += 1
        return float(self.steps)

    def fp16_enabled(self) -> bool:
        return False

    def get_global_grad_norm(self) -> float:
        return 1.5


class NeverEnds(HardEnd):
    """Only remembers the countdowns that were begun: the process has other tests to run."""

    def __init__(self) -> None:
        super().__init__()
        self.countdowns: list[float] = []

    def start(self, after_s: float = HARD_END_AFTER_S, sentence: str | None = None) -> None:
        self.countdowns.append(after_s)


def training_of(diary: list[str], observers: list[Observer], leaves_at: int | None = None) -> Training:
    """Three steps of a training whose engine is a stand-in; told lines go into the diary, stamped ones in short."""
    shape = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 8}
    sizes = {"seq_length": SEQUENCE, "micro_batch_size": 2, "global_batch_size": BATCH}
    options = parse(to_arguments({**shape, **sizes, "lr": 1e-3, "train_iters": 3}), 1)

    def reason(iteration: int, steps_done: int, consumed_samples: int) -> tuple[Reason, str] | None:
        assert (steps_done, consumed_samples) == (iteration, iteration * BATCH)
        return (Reason.KILL_SWITCH, "last words") if iteration == leaves_at else None

    def tell(line: str) -> None:
        said = parse_stamp(line)
        diary.append(said.what if said else line)

    engine: Any = Counting()

    def announce(why: Reason, iteration: int) -> None:
        diary.append(f"announced: {why} at {iteration}")

    leaving: Any = SimpleNamespace(reason=reason, announce=announce, asked_saves=SimpleNamespace(are_due=False))
    parallel: Any = None
    return Training(
        engine=engine,
        parallel=parallel,
        lengths=Lengths.of(options),
        schedule=LearningRateSchedule.of(options),
        sequence_length=SEQUENCE,
        progress=Progress.none(),
        leaving=leaving,
        open_items=lambda _first: None,
        observers=observers,
        tell=tell,
        hard_end=NeverEnds(),
        last_save_s=90.0,
    )


def test_the_loop_hands_every_step_to_each_observer_in_turn() -> None:
    diary: list[str] = []
    observers = [Watcher("one", diary), Watcher("other", diary)]
    training = training_of(diary, [*observers])
    assert train(training) == Reason.FINISHED
    assert diary == [
        "before the start of training step",
        *("one: 1", "other: 1", "one: 2", "other: 2", "one: 3", "other: 3"),
        "announced: finished at 3",
        "after training is done",
        *("one: leaving at 3", "other: leaving at 3"),
        *("one: finished", "other: finished"),
        *("one: closed", "other: closed"),
    ]
    last = observers[0].steps[-1]
    assert (last.result.loss, last.result.gradient_norm, last.batch_size) == (3.0, 1.5, BATCH)
    # The step ran at the rate of the samples before it; what it reports is the next one's.
    assert training.engine.optimizer.param_groups[0]["lr"] == training.schedule.at(16)
    assert last.learning_rate == training.schedule.at(24)
    assert last.progress == Progress(
        iteration=3, consumed_train_samples=24, consumed_train_tokens=384, consumed_valid_samples=0
    )


def test_who_leaves_early_says_so_before_it_saves_and_is_heard_before_the_last_words() -> None:
    diary: list[str] = []
    training = training_of(diary, [Watcher("one", diary)], leaves_at=2)
    assert train(training) == Reason.KILL_SWITCH
    announced = "announced: kill-switch at 2"
    assert diary[1:] == ["one: 1", "one: 2", announced, "one: leaving at 2", "last words", "one: closed"]


def test_a_last_save_has_its_time_and_what_comes_after_it_a_minute() -> None:
    training = training_of([], [], leaves_at=2)
    train(training)
    assert isinstance(training.hard_end, NeverEnds)
    assert training.hard_end.countdowns == [90.0, 60.0]


def test_what_breaks_ends_the_training_and_leaves_nothing_open() -> None:
    diary: list[str] = []
    with pytest.raises(RuntimeError, match="broken"):
        train(training_of(diary, [Breaks(), Watcher("one", diary)]))
    assert diary[1:] == ["one: closed"]


def test_the_norm_of_a_step_is_measured_once_and_only_when_asked_for() -> None:
    asked: list[int] = []

    def norm() -> float:
        asked.append(1)
        return 50.0

    step = step_at(1, measured_norm=norm)
    assert asked == []
    assert (step.parameters_norm, step.parameters_norm, asked) == (50.0, 50.0, [1])
