"""Commands that findings name exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

from opsctl.cli import COMMANDS, root
from opsctl.monitoring import checks

#: `opsctl`, then words, then options, as far as a sentence goes that has a command in it.
_TYPED = re.compile(r"\bopsctl ((?:[a-z-]+ ?)+)")
_OPTION = re.compile(r"(?<= )--?[a-z][a-z-]*")


def sentences() -> Iterator[tuple[str, str]]:
    """(module, text) of each text in a check's source that names a command of ours."""
    for source in sorted(Path(next(iter(checks.__path__))).glob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "opsctl " in node.value:
                for part in re.split(r"[;:,`\n]|\. |\?", node.value):
                    if _TYPED.search(part):
                        yield source.stem, part[part.index("opsctl ") :].strip()


def test_each_command_that_a_finding_names_exists_with_its_options() -> None:
    named = sorted(set(sentences()))
    assert len(named) > 50
    for module, text in named:
        words = text.split()[1:]
        assert words[0] in COMMANDS, f"{module}: {text}"
        found = root.get_command(click.Context(root), words[0])
        if isinstance(found, click.Group) and len(words) > 1 and not words[1].startswith(("-", "{")):
            found = found.get_command(click.Context(found), words[1])
        assert found is not None, f"{module}: {text}"
        known = {option for parameter in found.params for option in parameter.opts}
        assert set(_OPTION.findall(text)) <= known, f"{module}: {text}"


def test_each_finding_has_something_to_type() -> None:
    calls = [
        (source.name, node.lineno, [word.arg for word in node.keywords])
        for source in Path(next(iter(checks.__path__))).glob("*.py")
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("warning", "critical")
    ]
    assert len(calls) > 20
    assert [(name, line) for name, line, words in calls if "todo" not in words] == []
