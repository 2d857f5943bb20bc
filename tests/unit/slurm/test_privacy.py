"""Whose jobs a Slurm shows, by its configuration."""

from __future__ import annotations

import pytest

from opsctl.slurm.privacy import hides_others_jobs


@pytest.mark.parametrize(
    ("kept", "uid", "hidden"),
    [
        ("jobs", 1000, True),
        ("accounts,jobs,users", 1000, True),
        ("none", 1000, False),
        ("accounts,nodes", 1000, False),
        ("jobs", 0, False),
        ("jobs", 64030, False),
    ],
)
def test_with_private_jobs_only_root_and_slurms_own_account_see_others(kept: str, uid: int, hidden: bool) -> None:
    assert hides_others_jobs({"PrivateData": kept, "SlurmUser": "slurm(64030)"}, uid) is hidden


def test_a_configuration_that_does_not_say_it_hides_nothing() -> None:
    assert not hides_others_jobs({}, 1000)
