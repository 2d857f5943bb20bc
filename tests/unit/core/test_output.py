"""Test what is printed is shown and never obeyed, and there is one way to print."""

from __future__ import annotations

import ast
import io
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.core import output
from opsctl.core.output import message, message_text, printable, shortened, show, show_lines, show_text
from tests.unit.test_rooms import module_of, sources

#: What steers a terminal or a reader's eye: C0, DEL, C1, what turns the direction of writing, halves of pairs, and
#: line ends that not everybody takes for such.
STEERING = [
    "\0",
    "\a",
    "\b",
    "\r",
    "\n",
    "\x1b",
    "\x7f",
    "\x9b",
    "\u202e",
    "\u2066",
    "\u200f",
    "\ud800",
    "\u2028",
    "\x0b",
]
#: Modules that write without `opsctl.core.output`.
#: pyslurm_program answers through a pipe.
OTHERS = {
    *("opsctl.core.output", "opsctl.local.demo.stage", "opsctl.local.demo.stage"),
    "opsctl.slurm.pyslurm_program",
}
#: Those that steer the terminal themselves.
SCREENS = {"opsctl.core.output", "opsctl.cli.next_steps", "opsctl.cli.status", "opsctl.cli.local_cluster"}


@pytest.mark.parametrize("character", STEERING, ids=ascii)
def test_what_steers_a_terminal_is_shown_as_an_escape(character: str) -> None:
    assert printable(f"a{character}b") == f"a{repr(character)[1:-1]}b"
    assert printable(f"a{character}b", " ") == "a b"


@given(st.text(st.characters()))
def test_whatever_a_text_holds_no_control_character_comes_out(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert not any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in shown)


def test_what_people_write_stays_as_it_is() -> None:
    assert printable("naïve 训练 тест 🙂 100% |████| [0-3]") == "naïve 训练 тест 🙂 100% |████| [0-3]"


def test_lines_keep_their_tabs_and_a_line_end_in_one_makes_no_second(capsys: pytest.CaptureFixture[str]) -> None:
    show("a\tb\x1b[2J\nc")
    show_lines(["1", "2\r"])
    message("no\nopsctl: yes\x9b1m")
    assert capsys.readouterr() == ("a\tb\\x1b[2J\\nc\n1\n2\\r\n", "no\\nopsctl: yes\\x9b1m\n")


def test_a_text_keeps_its_line_ends_and_only_these(capsys: pytest.CaptureFixture[str]) -> None:
    show_text("#!/bin/bash\n\techo \x1b\u2028\n\nend\n")
    show_text("")
    message_text("a\nb\x07")
    assert capsys.readouterr() == ("#!/bin/bash\n\techo \\x1b\\u2028\n\nend\n", "a\nb\\x07\n")


def test_what_the_terminals_encoding_lacks_is_written_as_an_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    show("é 训\udcff")
    assert written.getvalue() == b"\xe9 \\u8bad\\udcff\n"


def writing_calls(source: str) -> list[str]:
    """Calls in `source` that print past `opsctl.core.output`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("print", "click.echo", "click.secho") or called.startswith(("sys.stdout.w", "sys.stderr.w")):
                found.append(f"line {node.lineno}: {called}")
    return found


def test_everything_is_printed_in_one_way() -> None:
    for source in sources("opsctl"):
        text, module = source.read_text(), module_of(source)
        if module not in OTHERS and any(word in text for word in ("print(", "echo(", "secho(", "stdout", "stderr")):
            assert not writing_calls(text), f"{module} must print through opsctl.core.output"
        if module not in SCREENS:
            assert output.write_screen.__name__ not in text, f"{module} steers the terminal"


@pytest.mark.parametrize("line", ["print(x)", "click.echo(x)", "sys.stdout.write(x)", "sys.stderr.writelines(x)"])
def test_a_new_way_to_print_is_seen(line: str) -> None:
    assert writing_calls(f"def f():\n    {line}\n")


@pytest.mark.parametrize(
    ("text", "width", "expected"), [("abcdefgh", 8, "abcdefgh"), ("abcdefgh", 7, "abc…fgh"), ("ab", 1, "…")]
)
def test_the_middle_of_a_name_goes_first(text: str, width: int, expected: str) -> None:
    assert shortened(text, width) == expected
