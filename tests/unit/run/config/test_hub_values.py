from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import RunFileError
from opsctl.run.config.hub_values import check_hub
from tests.facts import missing

RUN_FILE = Path("/run/run.toml")


@pytest.mark.parametrize("key", ["repo", "logs_repo", "checkpoints_repo"])
@pytest.mark.parametrize("name", ["lab/x.git", "git@host:lab/x.git", "lab/a/b.git", "x.git"])
def test_a_path_that_looks_like_git_is_refused_with_both_forms(key: str, name: str) -> None:
    with pytest.raises(RunFileError) as refused:
        check_hub(RUN_FILE, {key: name})
    assert missing(str(refused.value), f'/run/run.toml: [hub] {key} = "{name}"', "OWNER/NAME", "https://HOST/") == []


@pytest.mark.parametrize("name", ["lab/x", "lab/x.gitlab", "https://host/lab/x.git", "http://localhost:3000/lab/x.git"])
def test_both_forms_are_taken(name: str) -> None:
    check_hub(RUN_FILE, {"repo": name})
