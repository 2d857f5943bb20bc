"""Test which jobs are a run's."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from opsctl.run.state.chains import Recorded
from tests.unit.run.state.test_chains import CHAIN, NOW, OURS

KNOWN = Recorded("5eed", (CHAIN,))
#: The same job after its comment was changed: the record of its chain alone shows whose it is.
CHANGED = structs.replace(OURS, comment="see ticket", name=CHAIN.name, work_dir=CHAIN.work_dir)


def test_a_renamed_job_of_another_user_is_still_the_runs() -> None:
    other = structs.replace(OURS, name="something else", user="bob", array_job_id=77)
    assert KNOWN.own([other]) == [other]


def test_a_job_of_another_run_is_not() -> None:
    assert KNOWN.own([structs.replace(OURS, comment="opsctl run=0ther submit=70ce")]) == []
    assert KNOWN.own([structs.replace(OURS, comment="", array_job_id=99)]) == []


def test_a_job_whose_comment_was_changed_is_known_by_its_chain() -> None:
    assert KNOWN.own([CHANGED]) == [CHANGED]


@pytest.mark.parametrize(
    "other",
    [
        {"name": "analysis"},
        {"work_dir": "/elsewhere"},
        {"submitted_at": NOW + timedelta(hours=1)},
        {"user": "bob"},
        {"comment": "opsctl errand=e1234567 job=1"},
        {"comment": "opsctl cron=70ce run=20260102"},
        {"comment": "opsctl run=0ther submit=70ce"},
    ],
)
def test_a_job_that_got_a_chains_id_is_not_the_runs_where_anything_speaks_against_it(other: dict[str, Any]) -> None:
    assert KNOWN.own([structs.replace(CHANGED, **other)]) == []


def test_a_chain_whose_name_and_folder_are_not_recorded_proves_nothing() -> None:
    unnamed = Recorded("5eed", (structs.replace(CHAIN, name="", work_dir=""),))
    assert unnamed.own([CHANGED]) == []
    assert unnamed.own([OURS]) == [OURS]


def test_a_job_of_a_new_cluster_with_the_same_id_is_not_the_chains() -> None:
    stranger = structs.replace(OURS, comment="", submitted_at=NOW + timedelta(days=1))
    assert KNOWN.own([stranger, structs.replace(OURS, comment="", user="bob")]) == []
