"""Test which version may follow which."""

from __future__ import annotations

import pytest

from release.refusal import Refused
from release.versions import check_follows, last_tag, with_version


def test_the_last_tag_is_the_latest_version_by_number() -> None:
    assert last_tag(["v0.9.0", "v0.10.0", "v0.2.0", "vacation", "2.0.0", "v1.0"]) == "v0.10.0"
    assert last_tag(["tip"]) is None


@pytest.mark.parametrize("version", ["0.10.1", "0.11.0", "1.0.0"])
def test_a_later_version_follows(version: str) -> None:
    check_follows(version, ["v0.9.0", "v0.10.0"])
    check_follows(version, [])


@pytest.mark.parametrize("version", ["0.10.0", "0.9.9", "1.0", "v1.0.0", "1.0.0rc1", "01.0.0", "1.0.0\n", ""])
def test_what_is_there_earlier_or_no_version_does_not(version: str) -> None:
    with pytest.raises(Refused):
        check_follows(version, ["v0.9.0", "v0.10.0"])


def test_the_version_stands_once_in_the_project() -> None:
    project = 'name = "opsctl"\nversion = "0.1.0"\npython_version = "3.11"\n'
    assert with_version(project, "0.2.0") == project.replace("0.1.0", "0.2.0")
    for text in ("", project + 'version = "2"\n'):
        with pytest.raises(Refused):
            with_version(text, "0.2.0")
