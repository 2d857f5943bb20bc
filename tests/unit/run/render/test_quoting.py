"""Quoting for the two readers of a batch script: bash, and sbatch with its `#SBATCH` lines. Pure."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.core.errors import RunFileError
from opsctl.run.render.templates import directive_word, filename_pattern, shell_word

PRINTABLE = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["Cs", "Cc"]))


@given(PRINTABLE)
def test_bash_reads_back_whatever_was_quoted(text: str) -> None:
    printed = subprocess.run(["bash", "-c", f"printf %s {shell_word(text)}"], capture_output=True, timeout=10)
    assert printed.stdout.decode() == text


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b", "\x1b[31m", "a\x7f"])
def test_a_line_break_or_control_character_is_refused(bad: str) -> None:
    for quote in (shell_word, directive_word, filename_pattern):
        with pytest.raises(RunFileError):
            quote(bad)


def test_plain_directive_values_stay_as_a_person_would_write_them() -> None:
    assert directive_word("afterany:12:13") == "afterany:12:13"
    assert directive_word("x[01-03],y") == "x[01-03],y"
    assert directive_word("/a/%x-%A_%a.out") == "/a/%x-%A_%a.out"


def test_blanks_comments_and_quotes_are_grouped_for_sbatch() -> None:
    assert directive_word("a b") == "'a b'"
    assert directive_word("#1") == "'#1'"
    assert directive_word("it's") == "'it'\"'\"'s'"
    assert directive_word("a\\b") == "'a\\\\b'"
    assert directive_word("") == "''"


def test_percent_signs_of_a_path_are_no_patterns() -> None:
    assert filename_pattern("/data/50%x") == "/data/50%%x"
    with pytest.raises(RunFileError, match="backslash"):
        filename_pattern("/a\\b")
