"""The loop: when it leaves, and what it hands to observers that it knows nothing of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.trainer.loop.steps import BATCH, SEQUENCE
from trainer.engine import StepResult
from trainer.formats.leave_lines import Reason
from trainer.formats.progress import Progress
from trainer.loop import train as loop
from trainer.loop.observer import Observer, Step
from trainer.loop.train import Training
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


def training_of(diary: list[str], observers: list[Observer], leaves_at: int | None = None) -> Training:
    """Three steps of a training whose engine is a stand-in; told lines go into the diary."""
    shape = {"num_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 8}
    sizes = {"seq_length": SEQUENCE, "micro_batch_size": 2, "global_batch_size": BATCH}
    options = parse(to_arguments({**shape, **sizes, "lr": 1e-3, "train_iters": 3}), 1)

    def reason(iteration: int, steps_done: int) -> tuple[Reason, str] | None:
        assert steps_done == iteration
        return (Reason.KILL_SWITCH, "last words") if iteration == leaves_at else None

    engine: Any = SimpleNamespace(train_batch_size=lambda: BATCH)
    leaving: Any = SimpleNamespace(reason=reason)
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
        tell=diary.append,
    )


@pytest.fixture(autouse=True)
def steps_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Each step takes an hour of the clock that `stamp` reads."""
    clock = SimpleNamespace(hour=1)

    def step(_engine: Any, _items: Any, _learning_rate: float) -> StepResult:
        clock.hour += 1
        return StepResult(float(clock.hour), 1.0, None, False)

    monkeypatch.setattr(loop, "stamp", lambda what: f"{what} at {clock.hour}")
    monkeypatch.setattr(loop, "leave_line", lambda reason: f"{reason} at {clock.hour}")
    monkeypatch.setattr(loop, "train_step", step)
    monkeypatch.setattr(loop, "parameters_norm", lambda _engine, _parallel: float(clock.hour))
    return clock


def test_the_loop_hands_every_step_to_each_observer_in_turn() -> None:
    diary: list[str] = []
    observers = [Watcher("one", diary), Watcher("other", diary)]
    assert loop.train(training_of(diary, [*observers])) == Reason.FINISHED
    assert diary == [
        "before the start of training step at 1",
        *("one: 1", "other: 1", "one: 2", "other: 2", "one: 3", "other: 3"),
        "finished at 4",  # dated when it comes
        *("one: leaving at 3", "other: leaving at 3"),
        *("one: finished", "other: finished"),
        *("one: closed", "other: closed"),
    ]
    last = observers[0].steps[-1]
    assert (last.result.loss, last.batch_size) == (4.0, BATCH)
    assert last.progress == Progress(
        iteration=3, consumed_train_samples=24, consumed_train_tokens=384, consumed_valid_samples=0
    )


def test_who_leaves_early_is_heard_before_the_last_words() -> None:
    diary: list[str] = []
    assert loop.train(training_of(diary, [Watcher("one", diary)], leaves_at=2)) == Reason.KILL_SWITCH
    assert diary[1:] == ["one: 1", "one: 2", "one: leaving at 2", "last words", "one: closed"]


def test_what_breaks_ends_the_training_and_leaves_nothing_open() -> None:
    diary: list[str] = []
    with pytest.raises(RuntimeError, match="broken"):
        loop.train(training_of(diary, [Breaks(), Watcher("one", diary)]))
    assert diary[1:] == ["one: closed"]


def test_the_norm_of_a_step_is_measured_once_and_only_when_asked_for(steps_without_an_engine: SimpleNamespace) -> None:
    diary: list[str] = []
    watcher = Watcher("one", diary)
    loop.train(training_of(diary, [watcher]))
    steps_without_an_engine.hour = 50
    assert watcher.steps[0].parameters_norm == 50.0
    steps_without_an_engine.hour = 60
    assert watcher.steps[0].parameters_norm == 50.0
