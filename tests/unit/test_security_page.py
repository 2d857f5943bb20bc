"""What docs/security.md claims is shown by a test is shown by one that is there."""

from __future__ import annotations

import ast
import re

import pytest

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


def test_the_page_cites_tests() -> None:
    assert len(cited()) > 20


@pytest.mark.parametrize(("file", "test"), cited())
def test_a_cited_test_is_there(file: str, test: str) -> None:
    functions = {
        node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)
    }
    assert not test or test in functions, f"{file} has no {test}"
