"""Any JSON and any moment, for tests of what is written and read back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta, timezone

from hypothesis import strategies as st

#: Moments with a zone as today's have them: a whole number of minutes from UTC.
MOMENTS = st.datetimes(timezones=st.integers(-14 * 60, 14 * 60).map(lambda east: timezone(timedelta(minutes=east))))


def any_json(keys: Sequence[str]) -> st.SearchStrategy[object]:
    """JSON values whose objects often have one of `keys`, so that they are nearly right."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(list(keys)), inner),
        max_leaves=12,
    )
