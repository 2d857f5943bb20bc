"""The unit tests lie as the rooms do, so that a reader finds a room's tests by its name."""

from __future__ import annotations

import ast
from pathlib import Path

UNIT = Path(__file__).resolve().parent
ROOT = UNIT.parents[1]


def room_of(folder: Path) -> Path:
    """The folder of the sources whose tests lie in `folder`."""
    parts = folder.relative_to(UNIT).parts
    return ROOT.joinpath(*parts) if parts[:1] == ("trainer",) else ROOT.joinpath("opsctl", *parts)


FOLDERS = sorted({path.parent for path in UNIT.rglob("test_*.py")} - {UNIT})


def test_every_folder_of_tests_is_a_rooms_or_of_a_module_with_many() -> None:
    rooms = map(room_of, FOLDERS)
    assert [one for one in rooms if not (one / "__init__.py").is_file() and not one.with_suffix(".py").is_file()] == []


def test_every_file_of_tests_is_named_after_a_module_or_states_its_theme() -> None:
    for folder in FOLDERS:
        modules = {path.stem for path in room_of(folder).glob("*.py")}
        for file in folder.glob("test_*.py"):
            if file.stem.removeprefix("test_") not in modules:
                assert ast.get_docstring(ast.parse(file.read_text())), f"{file.relative_to(ROOT)} has no docstring"
