"""The rules for versions: which may follow which, and where it is written. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from release.refusal import Refused

_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
_IN_PROJECT = re.compile(r'^version = "(?P<version>[^"]*)"$', re.MULTILINE)


def tag_of(version: str) -> str:
    """The tag's name."""
    return f"v{version}"


def check_follows(version: str, tags: Iterable[str]) -> None:
    """Raises Refused unless `version` is x.y.z and later than every version that is tagged."""
    wanted = _VERSION.fullmatch(version)
    if wanted is None:
        raise Refused(f"VERSION={version}: three numbers, as in make release VERSION=1.2.3")
    latest = last_tag(tags)
    if latest is not None and _numbers(version) <= _numbers(latest.removeprefix("v")):
        raise Refused(f"{latest} is there: {version} does not follow it")


def last_tag(tags: Iterable[str]) -> str | None:
    """The tag of the latest version among `tags`; others count for nothing."""
    versions = [one for one in tags if one.startswith("v") and _VERSION.fullmatch(one[1:])]
    return max(versions, key=lambda one: _numbers(one[1:]), default=None)


def with_version(project: str, version: str) -> str:
    """The text of pyproject.toml with another version of ours."""
    changed, count = _IN_PROJECT.subn(f'version = "{version}"', project)
    if count != 1:
        raise Refused(f"pyproject.toml has {count} lines version = ...: it should have one")
    return changed


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
