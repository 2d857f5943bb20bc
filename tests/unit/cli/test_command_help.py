"""The page of all commands, made from their own help."""

from __future__ import annotations

import re
from pathlib import Path

from opsctl.cli import COMMANDS
from opsctl.cli.command_help import markdown

PAGE = Path(__file__).parents[3] / "docs" / "commands.md"


def test_the_page_is_what_the_commands_say_today() -> None:
    assert PAGE.read_text() == markdown() + "\n", "write it anew: python -m opsctl.cli.command_help > docs/commands.md"


def test_every_command_is_on_it_once() -> None:
    headings = re.findall(r"^#{3,} (opsctl .+)$", PAGE.read_text(), re.MULTILINE)
    assert {f"opsctl {name}" for name in COMMANDS} <= set(headings)
    assert len(headings) == len(set(headings))


def test_what_help_writes_in_brackets_and_stars_is_shown_as_it_is() -> None:
    import markdown as reader  # what mkdocs reads pages with

    page = reader.markdown(PAGE.read_text(), extensions=["tables", "fenced_code"])
    assert "demo, llama-1B" in page and "[default: demo]" in page
    assert re.findall(r"<(?!/?(?:h\d|p|code|pre|table|thead|tbody|tr|th|td|a|em|strong|ul|li|br)\b)", page) == []
