"""The comment by which a run's jobs are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.slurm.job_match import JobComment, parse_comment

WORDS = st.text(st.characters(exclude_categories=("Cs", "Z", "C")), min_size=1)


@given(WORDS, WORDS)
def test_any_comment_is_read_back(run_id: str, token: str) -> None:
    assert parse_comment(str(JobComment(run_id, token))) == JobComment(run_id, token)


@pytest.mark.parametrize("text", ["", "(null)", "run=a submit=b", "opsctl run= submit=b", "opsctl run=a", "my opsctl"])
def test_nobody_elses_comment_is_ours(text: str) -> None:
    assert parse_comment(text) is None
