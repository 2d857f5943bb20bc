"""Test what the doctor and `env check` say to type can be typed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from opsctl.cli import root
from opsctl.ui.doctor.check import examined
from opsctl.ui.doctor.gather import CHECKS
from tests.unit.ui.doctor.test_checks import BREAKS, HEALTHY


def advised() -> Iterator[str]:
    """Every `opsctl ...` in an answer, with whatever words come after it in its clause."""
    texts: set[str] = set()
    for seen in (HEALTHY, *(broken for _, broken, *_ in BREAKS)):
        texts |= {text for one in examined(CHECKS, seen) for text in (one.text, one.todo)}
    for text in sorted(texts):
        yield from re.findall(r"\bopsctl ([a-z][^;,>]*)", text)


def parsed(words: list[str]) -> str:
    """The command that click makes of `words` and the options right after it; nothing is called."""
    command: click.Command = root
    context = click.Context(root)
    name: list[str] = []
    while isinstance(command, click.Group):
        if not words and type(command).parse_args is not click.Group.parse_args:
            return " ".join(name)  # it takes the want of a word for one
        assert words, f"opsctl {' '.join(name)} needs another word"
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no opsctl {' '.join([*name, words[0]])}"
        command, (first, *words) = found, words
        name.append(first)
    options = [word for word in words if word.startswith("-")]
    command.make_context(" ".join(name), options)
    return " ".join(name)


def test_every_command_that_is_advised_is_one_with_these_options() -> None:
    names = {parsed(clause.split()) for clause in advised()}
    assert {"env check", "env build", "cron start", "hub login", "kill-switch arm", "local-cluster up"} <= names


@pytest.mark.parametrize("clause", ["env chek", "env", "env check --no-such-option"])
def test_one_that_is_none_would_be_seen(clause: str) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        parsed(clause.split())
