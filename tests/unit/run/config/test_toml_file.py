"""A file that is no TOML: the line, and the same line as it may have been meant."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from opsctl.core.errors import RunFileError
from opsctl.run.config.toml_file import parse_toml

FILE = Path("run.toml")


def refusal(text: str) -> str:
    with pytest.raises(RunFileError) as refused:
        parse_toml(FILE, text.encode())
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("name = tr1-13B", "tr1-13B"),
        ('name = "tr1', "tr1"),
        ("name = 'tr1  # the first", "tr1"),
        ("name = \u201ctr1\u201d", "tr1"),
        ('name = "C:\\runs\\x"', "C:\\runs\\x"),
        ("name: tr1", "tr1"),
        ("name: 4", 4),
        ("name = True", True),
        ("name = 007", 7),
        ("name = 1, 2", [1, 2]),
        ("name = [1, 2", [1, 2]),
        ("name = 20:00", "20:00"),
        ("name = C:/data # where", "C:/data"),
    ],
)
def test_a_line_that_is_no_toml_is_shown_with_what_may_have_been_meant(line: str, meant: object) -> None:
    said = refusal(f"[run]\n{line}\n")
    assert "line 2" in said and line in said
    assert tomllib.loads(said.rpartition("; write ")[2]) == {"name": meant}


@pytest.mark.parametrize("text", ["a = 1\na = 2\n", "[run]\n[run]\n", "a = [1, 2\nb = 3\n", "= 3\n"])
def test_where_the_line_by_itself_is_right_or_beyond_guessing_nothing_is_suggested(text: str) -> None:
    said = refusal(text)
    assert "; write " not in said and text.splitlines()[-1] in said


@pytest.mark.parametrize("value", ["None", "null", "nil  # unset"])
def test_a_key_without_a_value_is_named_without_a_suggestion(value: str) -> None:
    said = refusal(f"[trainer]\nseed = {value}\n")
    assert "; write " not in said and "seed" in said


def test_a_key_that_the_file_has_twice_is_named() -> None:
    said = refusal("[slurm]\nnodes = 1\nnodes = 2\n")
    assert "line 3" in said and "nodes" in said


@pytest.mark.parametrize("text", ["[alerts]\nchannels = smtp://me:secret@host\n", "[hub]\ntoken = secret\n"])
def test_what_may_be_a_secret_is_not_shown(text: str) -> None:
    said = refusal(text)
    assert "secret" not in said and "line 2" in said and "quotes" in said
