"""Tests may not assert our sentences, so that wording can improve without them; golden files are the exception."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests import golden

TESTS = golden.FOLDER.parent
#: Four words or more, of which all but the first are in lower case.
_SENTENCE = re.compile(r"[A-Za-z][a-z']*(?:[ ,;:]+[a-z][a-z'\-]*){3,}")
#: Literals that are formats other programs parse, or other programs' words. Lower it when one goes.
_CONTRACTS = 261


def test_no_more_sentences_are_asserted_than_contracts_have() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{sentence}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for sentence in _asserted_sentences(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert len(found) <= _CONTRACTS, "\n".join(found)


def test_there_are_few_golden_files_and_each_is_compared() -> None:
    files = {str(path.relative_to(golden.FOLDER)) for path in golden.FOLDER.rglob("*.*") if path.suffix != ".py"}
    files = {file for file in files if "__pycache__" not in file}
    assert 0 < len(files) <= golden.MOST_FILES


def _asserted_sentences(tree: ast.Module) -> Iterator[str]:
    """Yield "line: text" of each sentence in an assert, in `match=`, or in a test's parameters."""
    for node in ast.walk(tree):
        places: list[ast.expr] = []
        if isinstance(node, ast.Assert):
            places = [node.test]
        elif isinstance(node, ast.Call):
            places = [keyword.value for keyword in node.keywords if keyword.arg == "match"]
            if isinstance(node.func, ast.Attribute) and node.func.attr == "parametrize":
                places = [*node.args, *places]
        for place in places:
            for one in ast.walk(place):
                if isinstance(one, ast.Constant) and isinstance(one.value, str) and _SENTENCE.search(one.value):
                    yield f"{one.lineno}: {one.value[:60]}"
