"""Golden files: the complete output of a few screens and scripts, the only place where tests compare wording.

`make golden` writes them again; a reviewer reads the difference. A test asks for the fixture `golden` and calls it with
a file's name and its text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
#: Each file is read by a person whenever wording changes.
MOST_FILES = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write the golden files instead of comparing them")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the fixture, so that `make golden` runs these alone."""
    for item in items:
        if "golden" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.golden)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a function that compares a text with the golden file of that name, such as "status/running.txt"."""

    def compare(name: str, text: str) -> None:
        path = FOLDER / name
        if request.config.getoption("--write-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        assert text == expected, f"tests/golden/{name} differs: if the change is right, run make golden"

    return compare
