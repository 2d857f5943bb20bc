"""The unit tests lie as the rooms do, so that a reader finds a room's tests by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

UNIT = Path(__file__).resolve().parent
ROOT = UNIT.parents[1]
#: The theme of a file's tests where it is no module's name: what several modules of the room do together, or a claim
#: about all of them. A file of tests that is neither named after a module nor here has no place yet.
THEMES: dict[str, set[str]] = {
    "localcluster": {"daemons_and_people", "places_and_ports"},
    "render": {"scripts"},
    "runs": {"documentation", "examples", "load_anything"},
    "trainer": {"last_words", "launch_refusals"},
    "trainer/data": {"megatron"},
    "trainer/model": {"model_parts"},
}


def room_of(folder: Path) -> Path:
    """The folder of the sources whose tests lie in `folder`."""
    parts = folder.relative_to(UNIT).parts
    return ROOT.joinpath(*parts) if parts[:1] == ("trainer",) else ROOT.joinpath("opsctl", *parts)


FOLDERS = sorted({path.parent for path in UNIT.rglob("test_*.py")} - {UNIT})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(UNIT)))
def test_every_folder_of_tests_is_a_rooms(folder: Path) -> None:
    assert (room_of(folder) / "__init__.py").is_file(), f"{room_of(folder)} is no room"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(UNIT)))
def test_every_file_of_tests_is_named_after_a_module_or_a_theme(folder: Path) -> None:
    modules = {path.stem for path in room_of(folder).glob("*.py")}
    files = {path.stem.removeprefix("test_") for path in folder.glob("test_*.py")}
    assert files - modules <= THEMES.get(str(folder.relative_to(UNIT)), set())
