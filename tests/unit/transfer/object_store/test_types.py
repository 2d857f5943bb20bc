from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from opsctl.transfer.object_store.types import key_of, name_of


@given(st.binary(min_size=1).filter(lambda name: b"\0" not in name))
def test_every_name_has_a_key_that_any_store_can_hold_and_comes_back(name: bytes) -> None:
    key = key_of(os.fsdecode(name))
    assert name_of(key.encode().decode()) == os.fsdecode(name)
    assert not any(character < " " or character == "\x7f" for character in key)


@given(st.text("%0123456789ABCDEFabf\n\udcff", max_size=12))
def test_what_looks_escaped_comes_back_too(name: str) -> None:
    assert name_of(key_of(name)) == name
