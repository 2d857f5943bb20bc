"""The header of an index, written and read back. The bytes themselves are compared with Megatron's in `data`."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.formats.data.index_header import (
    HEADER_BYTES,
    TOKEN_TYPES,
    Header,
    bin_path,
    header_bytes,
    idx_path,
    read_header,
)


@given(st.sampled_from(sorted(TOKEN_TYPES.values())), st.lists(st.integers(0, 50), max_size=20))
def test_any_header_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, stored: tuple[str, int], lengths: list[int]
) -> None:
    name, token_bytes = stored
    count, tokens = len(lengths), sum(lengths)
    pointers = [sum(lengths[:number]) * token_bytes for number in range(count)]
    prefix = tmp_path_factory.getbasetemp() / "pair.v2"
    head = header_bytes(name, count, count + 1)
    idx_path(prefix).write_bytes(
        head + struct.pack(f"<{count}i{count}q{count + 1}q", *lengths, *pointers, *range(count + 1))
    )
    bin_path(prefix).write_bytes(bytes(tokens * token_bytes))
    assert len(head) == HEADER_BYTES == 34
    assert read_header(prefix) == Header(str(prefix), name, token_bytes, count, count + 1, tokens)
