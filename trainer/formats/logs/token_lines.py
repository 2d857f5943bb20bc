"""The line about one sample's tokens: the same for the same sample on every layout, so that logs can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray

# So many tokens at each end are printed; the digest is of all.
_ENDS = 3


def tokens_line(iteration: int, place: int, tokens: NDArray[int64]) -> str:
    """`tokens of iteration 2, sample 8: 1858 3851 29889 ... 500 13 13 (17 tokens, xxh64 0f3a...)`.

    place: of the sample in the training's order, from 0. tokens: int64, [sequence + 1].
    """
    import xxhash

    digest = xxhash.xxh64(tokens.astype("<i8").tobytes()).hexdigest()
    ids = [*map(str, tokens.tolist())]
    shown = ids if len(ids) <= 2 * _ENDS else [*ids[:_ENDS], "...", *ids[-_ENDS:]]
    return f"tokens of iteration {iteration}, sample {place}: {' '.join(shown)} ({len(ids)} tokens, xxh64 {digest})"
