"""Every opsctl command that a page shows is one, with options that it has; what its words stand for is left open.

tests/cluster/test_docs_sessions.py types most of them on a real Slurm and compares the output with the page.
NOT_TYPED is what is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from opsctl.cli import root
from tests.sessions import Typed, steps

ROOT = Path(__file__).resolve().parents[2]
#: Lab notes describe the past.
LEFT_OUT = {ROOT / "docs" / "lab-notes.md"}
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - LEFT_OUT)
_IN_LINE = re.compile(r"`(?:\$ )?opsctl ([a-z][^`]*)`")
_ON_A_LINE = re.compile(r"^(?: {4}|\$ |)opsctl ([a-z].*)$")
_BLOCK = re.compile(r"^```\w*\n(.*?)^```$|((?:^ {4}.*\n)+)", re.MULTILINE | re.DOTALL)


def shown(page: str) -> Iterator[str]:
    """Yield what comes after `opsctl` of every command in a page's blocks and lines, without a remark behind it."""
    for block in _BLOCK.finditer(page):
        for line in (block[1] or block[2]).splitlines():
            if match := _ON_A_LINE.match(line):
                yield re.split(r" +# |; opsctl| && | \| ", match[1])[0]
    for match in _IN_LINE.finditer(_BLOCK.sub("", page)):
        yield match[1]


def named(words: list[str]) -> str:
    """The command that `words` name. Raises AssertionError where there is none, or where it lacks an option."""
    command: click.Command = root
    context = click.Context(root)
    known, name = set[str](), []
    while True:
        known |= {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        found = command.get_command(context, words[0]) if isinstance(command, click.Group) and words else None
        if found is None:
            break
        command, (first, *words) = found, words
        name.append(first)
    said = f"opsctl {' '.join(name)}"
    if isinstance(command, click.Group) and type(command).parse_args is not click.Group.parse_args:
        members = [command.get_command(context, each) for each in command.list_commands(context)]
        known |= {option for each in members if each for one in each.params for option in one.opts}  # one is meant
    elif isinstance(command, click.Group) and words:
        assert not re.fullmatch(r"[a-z][a-z-]+", words[0]), f"{said} has no {words[0]}"
    own = re.sub(r'"?\$\(.*?\)"?', "WORD", " ".join(words)).partition("-- ")[0]
    for option in re.findall(r"(?:^|(?<=[\s\[|]))--?[a-z][a-z-]*", own):
        assert option in known | {"-h", "--help"}, f"{said} has no {option}"
    return " ".join(name)


def test_a_command_that_a_page_shows_is_there_with_its_options() -> None:
    count, wrong = 0, []
    for page in PAGES:
        for command in dict.fromkeys(shown(page.read_text())):
            if re.match(r"\w+=", command):  # what marks a job in Slurm
                continue
            count += 1
            try:
                assert named(command.split())
            except AssertionError as error:
                wrong.append(f"{page.relative_to(ROOT)}: {command}: {error}")
    assert wrong == [] and count > 200


@pytest.mark.parametrize("command", ["chekpoints list", "checkpoints lits", "status --al", "checkpoints list -x"])
def test_one_that_is_none_would_be_seen(command: str) -> None:
    with pytest.raises(AssertionError):
        assert named(command.split())


#: Commands that pages show and no session types: they need torch, a GPU, a hub, an index, a terminal or several people.
#: Tests of their own try them.
NOT_TYPED = {
    *("alerts test", "checkpoints convert", "checkpoints repoint", "completion"),
    *("cron logs", "env build", "env check", "evaluate", "generate", "hub check", "hub login", "help", "hub status"),
    *("hub sync", "import hf", "jobs cancel", "kernels build", "perms", "probe"),
    *("request", "request carry-out", "request requeue", "shell", "watch", "watch all", "watch backups"),
    *("json-schema", "man"),
    *("watch filesystem", "watch filling", "watch hub-sync", "watch slow-node"),
    *("watch speed", "watch throughput"),
}


def typed() -> set[str]:
    """The commands that a session of some page types."""
    told = [one.command for page in PAGES for one in steps(page.read_text()) if isinstance(one, Typed)]
    found = (re.search(r"(?:^|[;&|(] *)opsctl ([a-z].*)", one) for one in told)
    return {named(re.split(r" [;&|>]", match[1])[0].split()) for match in found if match}


def test_every_command_that_pages_show_is_typed_on_a_cluster_or_listed_here() -> None:
    there = {named(command.split()) for page in PAGES for command in shown(page.read_text()) if "=" not in command[:20]}
    assert there - typed() == NOT_TYPED
