"""Test what docs/security.md claims is shown by a test is shown by one that is there."""

from __future__ import annotations

import re

from tests.unit.test_rooms import ROOT

_CITED = re.compile(r"`(?P<file>tests/[\w/.]+\.py)?(?:::(?P<test>\w+))?`")


def cited() -> list[tuple[str, str]]:
    """(file, test) as the page names them; a test without a file is in the file named last, "" means the whole file."""
    found, file = [], ""
    for match in _CITED.finditer((ROOT / "docs" / "security.md").read_text()):
        file = match["file"] or file
        if match["file"] or match["test"]:
            found.append((file, match["test"] or ""))
    return found


def test_every_cited_test_exists() -> None:
    assert len(cited()) > 20
    for file, test in cited():
        text = (ROOT / file).read_text()
        assert not test or f"def {test}(" in text, f"{file} has no {test}"
