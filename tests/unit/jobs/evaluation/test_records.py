from __future__ import annotations

from datetime import timedelta
from typing import Any

from opsctl.core.timestamps import now
from opsctl.jobs.evaluation.brief import seen_in
from opsctl.jobs.evaluation.records import MOST_TRIES, Evaluated, standing

AT = now()


def lines(*told: tuple[str, dict[str, Any]] | str) -> list[Evaluated]:
    """Lines of the checkpoint 10, a minute between two."""
    found = []
    for number, one in enumerate(told):
        what, more = (one, {}) if isinstance(one, str) else one
        found.append(
            Evaluated(**{"iteration": 10, "what": what, "of": "a", "at": AT + timedelta(minutes=number), **more})
        )
    return found


def test_a_checkpoint_is_done_when_its_newest_word_is_that() -> None:
    assert not standing([], 10, "a").is_done
    assert standing(lines("begun", "failed", "begun", "done"), 10, "a").is_done
    assert not standing(lines("begun", "done", "begun"), 10, "a").is_done
    assert not standing(lines("begun", "done"), 10, "another save's").is_done


def test_it_is_given_up_after_so_many_tries_and_several_starts_of_one_job_are_one() -> None:
    assert standing(lines(*["begun", "failed"] * (MOST_TRIES - 1)), 10, "a").is_given_up is False
    assert standing(lines(*["begun"] * MOST_TRIES), 10, "a").is_given_up  # cut off each time
    of_one_job = [("begun", {"errand": "e1"})] * 5
    assert standing(lines(*of_one_job), 10, "a").tries == 1
    assert standing(lines(*["begun", "failed"] * 3, "begun", "done", "begun", "failed"), 10, "a").tries == 1


def test_a_job_is_under_way_from_when_it_was_asked_for_until_it_told_its_end() -> None:
    asked, begun, done = (("asked", {"errand": "e1"}), ("begun", {"errand": "e1"}), ("done", {"errand": "e1"}))
    for told in (lines(asked), lines(asked, begun)):
        under_way = standing(told, 10, "a").under_way
        assert under_way is not None and under_way.errand == "e1"
    assert standing(lines(asked, begun, done), 10, "a").under_way is None
    assert standing(lines(asked, ("withdrawn", {"errand": "e1"})), 10, "a").under_way is None
    assert standing(lines("begun"), 10, "a").under_way is None  # typed: its lock says whether it lives


def test_status_tells_the_last_end_what_is_open_and_what_was_given_up() -> None:
    told = [
        *lines("begun", ("failed", {"tasks": 28, "answered": 27, "detail": "1 failed: wsc"})),
        *lines(*[("begun", {"iteration": 20})] * MOST_TRIES),
        *lines(("asked", {"iteration": 30, "errand": "e3"})),
    ]
    seen = seen_in(told)
    assert (seen.iteration, seen.state, seen.tasks, seen.answered) == (10, "failed", 28, 27)
    assert (seen.open, seen.given_up) == ([20, 30], [])
    assert "iteration 10 failed, 27 of 28 tasks" in seen.told and "1 failed: wsc" in seen.told
    assert seen_in(lines(*["begun", "failed"] * MOST_TRIES)).given_up == [10]


def test_nothing_is_open_of_what_was_done_by_another_or_is_over() -> None:
    asked = ("asked", {"errand": "e1"})
    assert seen_in(lines(asked, "begun", "done")).open == []
    assert seen_in(lines(asked, "begun", "done", asked)).open == [10]
    assert seen_in(lines(asked)).open == [10] and seen_in(lines(asked), {10}).open == []
