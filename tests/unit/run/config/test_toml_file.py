"""A file that is no TOML."""

from __future__ import annotations

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
    "line", ["name = tr1-13B", "name = \u201ctr1\u201d", "name: tr1", "name = True", "name = 1, 2"]
)
def test_a_line_that_is_no_toml_is_shown(line: str) -> None:
    shown = refusal(f"[run]\n{line}\n")
    assert "line 2" in shown and f": {line}; " in shown


@pytest.mark.parametrize("text", ["a = [1, 2\nb = 3\n", "[run]\n[run]\n"])
def test_a_table_twice_and_a_list_without_an_end_are_refused(text: str) -> None:
    assert "run.toml: not TOML: " in refusal(text)


def test_a_key_that_the_file_has_twice_is_named() -> None:
    said = refusal("[slurm]\nnodes = 1\nnodes = 2\n")
    assert "line 3" in said and "nodes" in said


@pytest.mark.parametrize("text", ["[alerts]\nchannels = smtp://me:secret@host\n", "[hub]\ntoken = secret\n"])
def test_what_may_be_a_secret_is_not_shown(text: str) -> None:
    said = refusal(text)
    assert "secret" not in said and "line 2" in said and "quotes" in said
