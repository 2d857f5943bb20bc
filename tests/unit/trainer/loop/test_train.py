"""The loop: when it leaves, and what it hands to observers that it knows nothing of."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.facts import missing
from tests.unit.trainer.loop.steps import BATCH, SEQUENCE, step_at
from trainer.engine.build import StepResult
from trainer.formats.checkpoint.history import Progress
from trainer.formats.logs.guard_lines import Reason
from trainer.formats.logs.log_lines import parse_stamp
from trainer.loop.guarding import Guarding
from trainer.loop.leaving import HARD_END_AFTER_S, HardEnd
from trainer.loop.observer import Observer, Step
from trainer.loop.rewind import InVain
from trainer.loop.train import Training, evaluate_only, train
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.lengths import Lengths
from trainer.recipe.options import parse, to_arguments
from trainer.recipe.schedule import IterationRange, SkippedIterations


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
        self.is_fed = False
        self.steps = self.global_steps = self.global_samples = 0
        self.numbers = SimpleNamespace(begin=lambda _votes: None, loss=0.0, votes=())

    def train_batch_size(self) -> int:
        return BATCH

    def train_batch(self, data_iter: object) -> float:
        assert data_iter is None or self.is_fed
        self.steps += 1
        self.numbers.loss = float(self.steps)
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
    leaving.votes, leaving.counted, leaving.agreed_meanwhile = tuple, lambda _votes: None, None
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
        guarding=Guarding(None, None, lambda: 0.0, tell),
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
    assert last.result is not None
    assert (last.result.loss, last.result.gradient_norm, last.batch_size) == (3.0, 1.5, BATCH)
    # The step ran at the rate of the samples before it; what it reports is the next one's.
    assert training.engine.optimizer.param_groups[0]["lr"] == training.schedule.at(16)
    assert last.learning_rate == training.schedule.at(24)
    assert last.progress == Progress(
        iteration=3, consumed_train_samples=24, consumed_train_tokens=384, consumed_valid_samples=0
    )


@pytest.mark.parametrize("kind", ["nan", "inf", "skipped"])
def test_a_training_whose_iterations_are_all_in_vain_stops_itself_and_saves_nothing(kind: str) -> None:
    diary: list[str] = []
    training = replace(training_of(diary, [Watcher("one", diary)]), most_skipped=2)
    engine: Any = training.engine

    def in_vain(data_iter: object) -> float:
        engine.steps += 1
        engine.skipped_steps += kind == "skipped"
        engine.numbers.loss = 1.0 if kind == "skipped" else float(kind)
        return float(engine.numbers.loss)

    engine.train_batch = in_vain
    assert train(training) == Reason.SKIPPED_ITERATIONS
    *before, told, closed = diary[1:]
    assert before == ["one: 1", "one: 2", "announced: skipped-iterations at 2"] and closed == "one: closed"
    assert not missing(told, "2", "--max-skipped-iterations")


def test_one_good_iteration_starts_the_row_anew_and_no_limit_never_ends_a_training() -> None:
    good, bad = StepResult(1.0, 1.0, None, False), StepResult(math.nan, 1.0, None, False)
    limited, unlimited = InVain(2), InVain(0)
    for result in (bad, good, bad):
        limited.count(result)
    for _ in range(9):
        unlimited.count(bad)
    assert limited.reason() is None and unlimited.reason() is None
    limited.count(None)  # skipped on request: neither good nor bad
    limited.count(bad)
    assert limited.reason() is not None
    limited.begin_anew()
    assert limited.reason() is None


def test_evaluating_only_takes_no_step_and_saves_nothing() -> None:
    diary: list[str] = []
    assert evaluate_only(training_of(diary, [Watcher("one", diary)])) == Reason.FINISHED
    assert diary == ["before the evaluation", "one: finished", "one: closed"]


def test_an_evaluation_alone_that_is_told_to_stop_says_why_and_not_that_it_is_finished() -> None:
    diary: list[str] = []
    training = training_of(diary, [Watcher("one", diary)])
    training.leaving.agreed_meanwhile = (Reason.KILL_SWITCH, "last words")
    assert evaluate_only(training) == Reason.KILL_SWITCH
    assert diary == ["before the evaluation", "one: finished", "last words", "one: closed"]


class Items:
    """Stands for this rank's micro-batches: writes down where it is sent and what it is asked to read."""

    def __init__(self, diary: list[str]) -> None:
        self.diary = diary

    def go_to(self, consumed_samples: int) -> None:
        self.diary.append(f"at {consumed_samples}")

    def show_as(self, iteration: int | None) -> None:
        if iteration is not None:
            self.diary.append(f"shown as {iteration}")

    def read(self, batch_size: int) -> None:
        self.diary.append(f"read {batch_size}")

    def close(self) -> None: ...


def skipping(first: int, last: int, items: Items | None = None, **more: Any) -> tuple[Training, Watcher, list[str]]:
    """Return a training of three steps that skips some, its one observer, and the diary of both."""
    diary: list[str] = []
    watcher = Watcher("one", diary)
    skipped = SkippedIterations((IterationRange(first, last, "--train-range-to-skip"),))
    training = replace(training_of(diary, [watcher]), skipped=skipped, **more)
    return training, watcher, diary


def test_a_skipped_step_moves_every_counter_and_is_handed_on_without_a_result() -> None:
    training, watcher, diary = skipping(1, 2)
    assert train(training) == Reason.FINISHED
    assert not missing(diary[1], "1", "2", "--train-range-to-skip") and diary[2:5] == ["one: 1", "one: 2", "one: 3"]
    results = [step.result for step in watcher.steps]
    assert results[:2] == [None, None]
    assert results[2] is not None and results[2].loss == 1.0  # the first one that the engine takes
    assert [step.learning_rate for step in watcher.steps] == [training.schedule.at(n) for n in (8, 16, 24)]
    assert training.engine.optimizer.param_groups[0]["lr"] == training.schedule.at(16)
    assert (training.engine.global_steps, training.engine.global_samples, training.engine.skipped_steps) == (2, 16, 2)
    assert training.progress.counters() == {
        "iteration": 3,
        "consumed_train_samples": 24,
        "consumed_train_tokens": 384,
        "consumed_valid_samples": 0,
    }


def test_what_is_skipped_is_not_read_unless_it_is_shown() -> None:
    places: list[str] = []
    training, _, _ = skipping(2, 2, open_items=lambda _first: Items(places))
    training.engine.is_fed = True
    train(training)
    assert places == ["at 0", "at 16"]
    places.clear()
    shown = IterationRange(2, 3, "--log-tokens")
    training, _, _ = skipping(2, 2, open_items=lambda _first: Items(places), shown=shown)
    training.engine.is_fed = True
    train(training)
    assert places == ["at 0", "shown as 2", "at 8", "read 8", "shown as 3", "at 16"]


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
