"""The samples of each iteration, compared with a training walked step by step."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.formats.checkpoint.batch_history import BatchHistory
from trainer.formats.checkpoint.history import Change, Start
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.errors import DataError
from trainer.recipe.spike_guard import GuardState, Window

Settings = dict[str, Any]
#: One part of a training's way: its settings, and how many iterations it lasts.
WAYS = st.lists(
    st.tuples(
        st.fixed_dictionaries(
            {
                "global_batch_size": st.sampled_from([8, 16, 32]),
                "rampup_batch_size": st.sampled_from([None, [4, 4, 100], [8, 8, 37], [8, 8, 1]]),
                "train_range_to_skip": st.sampled_from([None, [3, 5], [9, 9, 2, 4], [1, 1, 6, 30, 8, 12]]),
                "skip_train_iteration_range": st.sampled_from([None, ["7-8"], ["2-3", "11-12"]]),
            }
        ),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=4,
)


def batch_at(settings: Settings, consumed: int) -> int:
    """Megatron's rule, from its text: so many whole intervals of the ramp are over."""
    if settings["rampup_batch_size"] is None:
        return int(settings["global_batch_size"])
    start, increment, ramp = settings["rampup_batch_size"]
    intervals = (settings["global_batch_size"] - start) / increment
    if consumed > ramp or not intervals:
        return int(settings["global_batch_size"])
    return int(start + int(consumed / (ramp / intervals)) * increment)


def is_skipped(settings: Settings, iteration: int) -> bool:
    numbers = settings["train_range_to_skip"] or []
    pairs = [(numbers[at], numbers[at + 1]) for at in range(0, len(numbers), 2)]
    words = [word.split("-") for word in settings["skip_train_iteration_range"] or []]
    pairs += [(int(first), int(last)) for first, last in words]
    return any(first <= iteration <= last for first, last in pairs)


#: What a spike guard left out, first and last iteration.
WINDOWS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)).map(lambda at: (at[0], sum(at))), max_size=3)


def manifest(
    iteration: int, samples: int, settings: Settings, starts: list[Start], windows: list[tuple[int, int]] | None = None
) -> Manifest:
    return Manifest(
        iteration=iteration,
        consumed_train_samples=samples,
        consumed_train_tokens=samples * 16,
        consumed_valid_samples=0,
        precision="fp32",
        layout={},
        model={},
        learning_rate={},
        files={},
        settings=settings,
        history=tuple(starts),
        spike_guard=None if windows is None else GuardState(windows=tuple(window(*one) for one in windows)),
    )


def window(first: int, last: int) -> Window:
    return Window(first, last, "5 unusual iterations", rolled_back_to=first - 1, found_at=last)


def started(kind: str, iteration: int, before: Settings | None = None, now: Settings | None = None) -> Start:
    changes = (
        [Change(name, before[name], now[name]) for name in now if before[name] != now[name]] if before and now else []
    )
    return Start(
        at=datetime(2026, 11, 22, tzinfo=UTC),
        user=getpass.getuser(),
        host="node",
        kind=kind,
        iteration=iteration,
        changes=tuple(changes),
    )


def walked(ways: list[tuple[Settings, int]]) -> tuple[list[tuple[int, int, bool]], list[Start]]:
    """(first sample, sample after the last, skipped) of each iteration, and the starts that a history has."""
    steps: list[tuple[int, int, bool]] = []
    starts: list[Start] = []
    consumed, before = 0, None
    for settings, count in ways:
        starts.append(started("resumed" if starts else "began", len(steps), before, settings))
        for _ in range(count):
            end = consumed + batch_at(settings, consumed)
            steps.append((consumed, end, is_skipped(settings, len(steps) + 1)))
            consumed = end
        before = settings
    return steps, starts


@given(WAYS, WINDOWS)
def test_iterations_and_samples_are_those_of_the_training_step_by_step(
    ways: list[tuple[Settings, int]], windows: list[tuple[int, int]]
) -> None:
    """The last part has not begun: it is what the options say from the checkpoint on."""
    steps, starts = walked(ways)
    done = len(steps) - ways[-1][1]
    if len(ways) > 1:  # what the checkpoint's guard left out, before it and after it
        steps = [
            (first, end, skipped or any(one <= number <= other for one, other in windows))
            for number, (first, end, skipped) in enumerate(steps, 1)
        ]
    at = None
    if len(ways) > 1:
        consumed = steps[done][0] if done < len(steps) else (steps[-1][1] if steps else 0)
        at = manifest(done, consumed, ways[-2][0], starts[:-1], windows)
    history = BatchHistory.of(ways[-1][0], at)
    assert [history.samples_after(number) for number in range(len(steps) + 1)] == [0, *(end for _, end, _ in steps)]
    assert [history.is_skipped(number) for number in range(1, len(steps) + 1)] == [skipped for *_, skipped in steps]
    for number, (first, end, _) in enumerate(steps, 1):
        assert [history.iteration_of(sample) for sample in (first, end - 1)] == [number, number]


CONSTANT = {
    "global_batch_size": 8,
    "rampup_batch_size": None,
    "train_range_to_skip": None,
    "skip_train_iteration_range": None,
}


def test_what_the_history_does_not_account_for_is_not_known_and_what_follows_is() -> None:
    """As of a checkpoint without settings, whose batch size was another once."""
    history = BatchHistory.of(CONSTANT, manifest(10, 100, {}, []))
    assert (history.samples_after(10), history.samples_after(12), history.iteration_of(100)) == (100, 116, 11)
    asked: list[tuple[Callable[[int], object], int]] = [
        (history.samples_after, 9),
        (history.iteration_of, 99),
        (history.is_skipped, 10),
    ]
    for ask, number in asked:
        with pytest.raises(DataError, match=r"\biteration 10\b.*\bsample 100\b"):
            ask(number)


def test_a_checkpoint_without_settings_is_taken_to_have_had_todays_where_its_counters_agree() -> None:
    history = BatchHistory.of(CONSTANT, manifest(10, 80, {}, []))
    assert (history.samples_after(3), history.iteration_of(25)) == (24, 4)


def test_what_was_before_finetuning_began_counts_for_nothing() -> None:
    small = {**CONSTANT, "global_batch_size": 4}
    starts = [started("began", 0), started("resumed", 7, small, CONSTANT), started("finetuned", 0)]
    history = BatchHistory.of(CONSTANT, manifest(5, 40, CONSTANT, starts))
    assert [history.samples_after(number) for number in range(6)] == [0, 8, 16, 24, 32, 40]
