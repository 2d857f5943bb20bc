"""numpy's shuffle, faster and bit for bit."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data import compiled

#: Fewer lie in the nearest caches: numpy is done with them before its state has been fetched and put back.
_FEWEST = 5_000


def shuffle(values: NDArray[np.integer[Any]], random: np.random.RandomState) -> None:
    """What `random.shuffle(values)` does to both; values: [N], of 4 or 8 bytes each, contiguous."""
    library = compiled.library()
    if library is None or len(values) < _FEWEST:
        random.shuffle(values)
        return
    kind, key, position, *normals = random.get_state(legacy=True)
    words = np.array(key, np.uint32)
    used = ctypes.c_int64(int(position))
    do = library.shuffle_32 if values.itemsize == 4 else library.shuffle_64
    do(compiled.address(values), len(values), compiled.address(words), ctypes.addressof(used))
    random.set_state((kind, words, used.value, *normals))
