"""After which iterations a training saves."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import missing
from trainer.recipe.option_table import OPTIONS
from trainer.recipe.options import Options
from trainer.recipe.save_schedule import SavePhase, SaveSchedule

#: What the 13B's interpretability group wished for.
WISH = ["10:100", "18:1000", "1500"]


def schedule(**given_options: object) -> SaveSchedule:
    return SaveSchedule.of(Options(given_options))


def saved(of: SaveSchedule, iterations: int) -> list[int]:
    return [one for one in range(iterations + 1) if of.is_due(one)]


@st.composite
def schedules(draw: st.DrawFn) -> SaveSchedule:
    phases, last = [], 0
    for _ in range(draw(st.integers(0, 3))):
        interval = draw(st.integers(1, 12))
        last = max(last + 1, (last // interval + 1) * interval) + draw(st.integers(0, 20))
        phases.append(SavePhase(interval, last))
    phases += [SavePhase(draw(st.integers(1, 40)))] * (bool(phases) or draw(st.booleans()))
    return SaveSchedule(tuple(phases), draw(st.frozensets(st.integers(1, 120), max_size=4)))


def test_phases_are_saved_as_wished_and_a_fixed_interval_as_ever() -> None:
    wish = saved(schedule(save_schedule=WISH), 150_000)
    assert wish[:10] == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert wish[10:60] == [108 + 18 * number for number in range(50)]  # fifty, to 990
    assert wish[60:] == [1500 * number for number in range(1, 101)]
    assert saved(schedule(save_interval=300), 1000) == [300, 600, 900]
    assert saved(schedule(save_interval=4, save_iterations=[3, 8]), 10) == [3, 4, 8]
    assert saved(schedule(save_iterations=[3]), 10) == [3] and not schedule()


def test_a_run_file_may_write_the_last_interval_as_a_number() -> None:
    assert schedule(save_schedule=["10:1_000", 1500]) == schedule(save_schedule=["10:1000", "1500"])


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["10:100"], ["10:100", "iteration 100"]),
        (["10", "100"], ["10", "10:LAST"]),
        (["10:100", "5:100", "7"], ["5:100", "100"]),
        (["10:100", "500:101", "7"], ["500:101", "500", "101"]),
        (["0:100", "7"], ["0:100"]),
        (["0"], ["1"]),
        (["10-100", "5"], ["10-100", "INTERVAL:LAST"]),
        (["-1"], ["-1"]),
    ],
)
def test_phases_that_cannot_be_are_named(words: list[str], facts: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        schedule(save_schedule=words)
    assert not missing(str(refused.value), *facts)


@given(schedules(), st.integers(0, 150))
def test_what_is_reckoned_is_what_one_step_after_another_gives(of: SaveSchedule, reached: int) -> None:
    all_saved = saved(of, 400)
    assert of.count(reached) == sum(one <= reached for one in all_saved)
    assert of.next_after(reached) == next((one for one in all_saved if one > reached), None)
    longest, due = of.longest_wait_after(reached), of.next_after(reached)
    assert (longest is None) == (due is None)
    if longest is not None and due is not None and of.is_due(reached):
        assert longest >= due - reached
    assert bool(of) == bool(all_saved)


@pytest.mark.parametrize(
    ("of", "numbers"),
    [
        (schedule(save_interval=1500), ["1,500"]),
        (schedule(save_schedule=WISH), ["10", "100", "18", "1,000", "1,500"]),
        (schedule(save_interval=9, save_iterations=[1, 5]), ["9", "2"]),
        (schedule(save_iterations=[1]), ["1"]),
    ],
)
def test_it_is_told_in_words(of: SaveSchedule, numbers: list[str]) -> None:
    assert re.findall(r"[\d,]*\d", of.words()) == numbers


def test_the_options_help_shows_the_wish_as_it_is_written() -> None:
    (option,) = [one for one in OPTIONS if one.key == "save_schedule"]
    assert " ".join(WISH) in option.help


def test_who_waits_for_the_next_save_waits_for_a_whole_interval_at_least() -> None:
    """One that was asked for at 1590 moves no other, and what is told then must not end before a save of 1600 took."""
    of = schedule(save_schedule=["100:1000", "400"], save_iterations=[1610])
    assert [of.longest_wait_after(reached) for reached in (90, 100, 1000, 1590, 1610)] == [100, 100, 400, 400, 400]
    assert schedule(save_iterations=[50]).longest_wait_after(40) == 10
