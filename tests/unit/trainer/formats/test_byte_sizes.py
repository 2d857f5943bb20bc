from __future__ import annotations

import pytest

from trainer.formats.byte_sizes import size_in_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("1B", 1), ("200MB", 200_000_000), ("200M", 200_000_000), ("1.5 GiB", 3 << 29), ("2ki", 2048), ("1p", 10**15)],
)
def test_a_size_is_read_in_powers_of_ten_or_with_an_i_of_two(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["200", "", "fast", "-1MB", "1e3MB", "MB", "1iB", "0B", "0.1B", "1.1.1MB"])
def test_what_is_no_size_or_none_at_all_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give "):
        size_in_bytes(text)
