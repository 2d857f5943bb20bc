"""The text of a run file, with any values."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from opsctl.run.init.draft import Draft, run_text

VALUES = st.one_of(
    st.text(), st.integers(-(2**53), 2**53), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)
)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), VALUES | st.lists(VALUES), max_size=5), st.text())
def test_every_value_is_read_back_as_it_was_whatever_is_remarked_and_noted(
    values: dict[str, object], text: str
) -> None:
    text = text.encode(errors="replace").decode()
    values = {key: _without_halves(value) for key, value in values.items()}
    begun = Draft()
    for key, value in values.items():
        begun.set("trainer", key, value, "line 1")
    begun.note(3, text)
    assert tomllib.loads(run_text(begun, [text])).get("trainer", {}) == values


def _without_halves(value: object) -> object:
    if isinstance(value, list):
        return [_without_halves(one) for one in value]
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def test_notes_stand_once_and_by_their_lines() -> None:
    begun = Draft()
    for line, text in ((9, "late"), (2, "early"), (9, "late"), (0, "of none")):
        begun.note(line, text)
    assert run_text(begun, []).splitlines()[-3:] == ["#   of none", "#   line 2: early", "#   line 9: late"]
