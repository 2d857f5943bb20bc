"""CHANGELOG.md as text: the section of a version, its date, the notes that people get. Pure."""

from __future__ import annotations

import datetime
import re

from release.refusal import Refused

UNRELEASED = "unreleased"
_HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\] - (?P<date>.+)$", re.MULTILINE)


def dated(text: str, version: str, today: datetime.date) -> str:
    """`text` with the section of `version` dated. Raises Refused where it is not there, dated already, or empty."""
    found = _section(text, version)
    if found["date"] != UNRELEASED:
        raise Refused(f"CHANGELOG.md dates [{version}] {found['date']}: it was released, or the date is too early")
    if not notes(text, version):
        raise Refused(f"CHANGELOG.md has nothing under [{version}]: say what changed for those who have runs")
    return text[: found.start("date")] + today.isoformat() + text[found.end("date") :]


def notes(text: str, version: str) -> str:
    """Return what the section of `version` says, without its heading. Raises Refused where there is none."""
    found = _section(text, version)
    following = _HEADING.search(text, found.end())
    return text[found.end() : following.start() if following else len(text)].strip()


def _section(text: str, version: str) -> re.Match[str]:
    for found in _HEADING.finditer(text):
        if found["version"] == version:
            return found
    raise Refused(f"CHANGELOG.md has no section: write ## [{version}] - {UNRELEASED} and what changed")
