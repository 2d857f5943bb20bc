"""Every opsctl command that a page shows is one, with options that it has; what its words stand for is left open.

Most are typed as well, on a real Slurm, and held to what the page says they print: tests/cluster/test_docs_sessions.py.
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
#: Lab notes tell of what was; two pages are made from the commands.
LEFT_OUT = {ROOT / "docs" / name for name in ("lab-notes.md", "json.md", "commands.md")}
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - LEFT_OUT)
_IN_LINE = re.compile(r"`(?:\$ )?opsctl ([a-z][^`]*)`")
_ON_A_LINE = re.compile(r"^(?: {4}|\$ |)opsctl ([a-z].*)$")
_BLOCK = re.compile(r"^```\w*\n(.*?)^```$|((?:^ {4}.*\n)+)", re.MULTILINE | re.DOTALL)


def shown(page: str) -> Iterator[str]:
    """What comes after `opsctl` of every command in a page's blocks and lines, without a remark behind it."""
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


_TORCH = "seconds of torch each; tests/unit/cli/test_export.py, tests/unit/cli/test_checkpoints.py"
_HUB = "a hub that answers; tests/unit/hub and tests/cluster/test_hub_jobs.py have one of their own"
#: Commands that pages show and no session types, and why: what tries them instead.
NOT_TYPED = {
    "alerts ack": "something has to be wrong first; tests/unit/alerts",
    "alerts send": "a channel that failed before; tests/unit/alerts",
    "alerts test": "a channel of somebody's; tests/unit/alerts has servers",
    "checkpoints convert": "seconds of torch; tests/unit/trainer/interchange/test_convert_program.py",
    "checkpoints repoint": "nobody may train; tests/cluster/test_job.py",
    "completion": "a shell's Tab; tests/unit/cli/test_completing.py starts shells",
    "cron logs": "a job that has run; tests/unit/cli/test_cron.py",
    "demo": "minutes of its own; tests/cluster/test_demo.py",
    "disk touch": "a profile that allows it; tests/unit/cli/test_disk.py",
    "env build": "a package index; tests/unit/environments has one",
    "evaluate": "a GPU or minutes; tests/cluster/test_evaluation.py",
    "generate": "seconds of torch; tests/unit/trainer/generation",
    "hub check": _HUB,
    "hub login": _HUB,
    "hub status": _HUB,
    "hub sync": _HUB,
    "import hf": _TORCH,
    "job run": "Slurm's jobs call it, people do not",
    "jobs cancel": "a long command; tests/cluster/test_errands.py",
    "kernels build": "minutes of compilers, and CUDA's; tests/unit/trainer/kernels",
    "kernels measure": "a device that is idle; tests/unit/trainer/kernels",
    "probe": "a minute of idle nodes; tests/cluster/test_probe.py",
    "request": "stands for its members",
    "request carry-out": "several people; tests/cluster/test_requests.py",
    "request requeue": "two minutes of Slurm's; tests/cluster/test_requests.py",
    "shell": "a terminal; tests/cluster/test_shell.py",
    "watch": "stands for its members",
    "perms": "stands for its members",
    **dict.fromkeys(
        (
            *("watch all", "watch backups", "watch filesystem", "watch filling", "watch hub-sync", "watch progress"),
            *("watch skipped", "watch slow-node", "watch speed", "watch throughput"),
        ),
        "says what this machine is like at that moment; tests/unit/watch",
    ),
}


def typed() -> set[str]:
    """The commands that a session of some page types."""
    told = [one.command for page in PAGES for one in steps(page.read_text()) if isinstance(one, Typed)]
    found = (re.search(r"(?:^|[;&|(] *)opsctl ([a-z].*)", one) for one in told)
    return {named(re.split(r" [;&|>]", match[1])[0].split()) for match in found if match}


def test_what_pages_show_is_typed_on_a_cluster_but_for_what_the_table_says_why() -> None:
    there = {named(command.split()) for page in PAGES for command in shown(page.read_text()) if "=" not in command[:20]}
    assert there - typed() == set(NOT_TYPED)


def test_what_the_table_says_tries_them_is_there() -> None:
    told = {path for why in NOT_TYPED.values() for path in re.findall(r"tests/[\w/.]+\w", why)}
    assert len(told) > 15 and [path for path in told if not (ROOT / path).exists()] == []
