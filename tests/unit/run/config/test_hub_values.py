"""Test what the values of `[hub]` may be, beyond their types."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import RunFileError
from opsctl.run.config.values import check_values
from tests.facts import missing

RUN_FILE = Path("/run/run.toml")


@pytest.mark.parametrize("key", ["repo", "checkpoints_repo"])
@pytest.mark.parametrize("name", ["lab/x.git", "git@host:lab/x.git", "lab/a/b"])
def test_what_is_no_repository_of_a_hub_is_refused_with_what_is_allowed(key: str, name: str) -> None:
    with pytest.raises(RunFileError) as refused:
        check_values(RUN_FILE, {"hub": {key: name}})
    assert missing(str(refused.value), f'/run/run.toml: [hub] {key} = "{name}"', "OWNER/NAME") == []


@pytest.mark.parametrize("url", ["https://host/lab/x.git", "https://ann:hunter22@host/lab/x?token=hunter22"])
def test_a_git_url_is_refused_by_name_without_what_may_be_a_secret(url: str) -> None:
    with pytest.raises(RunFileError, match="OWNER/NAME") as refused:
        check_values(RUN_FILE, {"hub": {"repo": url}})
    assert "hunter22" not in str(refused.value)


@pytest.mark.parametrize("name", ["lab/x", "lab/x.gitlab"])
def test_a_repository_of_a_hub_is_taken(name: str) -> None:
    check_values(RUN_FILE, {"hub": {"repo": name}})
