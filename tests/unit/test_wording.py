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


#: A docstring starts with a verb or with a noun, not with a question word.
_QUESTIONS = re.compile(r"(what|whether|who|whose|whom|that|of|how|where|which|also)\b", re.IGNORECASE)
#: Words that readers had to read twice, each with a plainer one in CONTRIBUTING.md.
_UNCLEAR = re.compile(
    r"\b(somebody|nobody|whoever|anybody|anew|in vain|mend(s|ed|ing)?|reckon(s|ed)?|(is|are|was|were) (told|said)"
    r"|held to|(goes|go) on (with|from|by)|comes? of|as it lies|put down)\b",
    re.IGNORECASE,
)


_QUOTED = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


def test_docstrings_and_messages_are_in_plain_english() -> None:
    found = []
    for path in sorted(path for package in ("opsctl", "trainer") for path in (TESTS.parent / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        comments = [line.partition("# ")[2] for line in source.splitlines()]
        tree = ast.parse(source)
        texts = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                documented = ast.get_docstring(node) or ""
                found += [f"{path}: {documented!r}"] if _QUESTIONS.match(documented) else []
        prose = [_QUOTED.sub("", one) for one in [*texts, *comments] if " " in one]
        found += [f"{path}: {one[:80]!r}" for one in prose if _UNCLEAR.search(one)]
    assert not found, "\n".join(found)


def test_the_docs_are_in_plain_english() -> None:
    pages = [TESTS.parent / "README.md", *(TESTS.parent / "docs").rglob("*.md")]
    found = []
    for path in pages:
        text = _QUOTED.sub("", path.read_text(encoding="utf-8"))
        found += [f"{path}: {match[0]!r}" for match in _UNCLEAR.finditer(text)]
    assert not found, "\n".join(found)
