"""Which jobs are a run's."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from opsctl.records.own_jobs import Recorded
from tests.unit.records.test_chains import CHAIN, NOW, OURS

KNOWN = Recorded("5eed", (CHAIN,))


def test_a_renamed_job_of_another_user_is_still_the_runs() -> None:
    other = replace(OURS, name="something else", user="bob", array_job_id=77)
    assert KNOWN.own([other]) == [other]


def test_a_job_of_another_run_is_not() -> None:
    assert KNOWN.own([replace(OURS, comment="opsctl run=0ther submit=70ce")]) == []
    assert KNOWN.own([replace(OURS, comment="", array_job_id=99)]) == []


def test_a_job_whose_comment_was_changed_is_known_by_its_chain() -> None:
    changed = replace(OURS, comment="see ticket")
    assert KNOWN.own([changed]) == [changed]


def test_a_job_of_a_new_cluster_with_the_same_id_is_not_the_chains() -> None:
    stranger = replace(OURS, comment="", submitted_at=NOW + timedelta(days=1))
    assert KNOWN.own([stranger, replace(OURS, comment="", user="bob")]) == []
