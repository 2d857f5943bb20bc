"""The data path in C++ (`csrc/data`), where it was built; beside each call of it stands what does the same in numpy."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from numpy.typing import NDArray

_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_SHUFFLE = (None, (_ADDRESS, _NUMBER, _ADDRESS, _ADDRESS))
_SAMPLE_INDEX = (_NUMBER, (_ADDRESS, _ADDRESS, _NUMBER, _NUMBER, _NUMBER, _ADDRESS))
#: What each returns and takes; the C++ beside it says what that is.
_SIGNATURES = {
    "shuffle_32": _SHUFFLE,
    "shuffle_64": _SHUFFLE,
    "shuffle_targets": (None, (ctypes.c_uint64, ctypes.c_uint64, _ADDRESS, _ADDRESS, _ADDRESS)),
    **{f"sample_index_{document}_{place}": _SAMPLE_INDEX for document in (32, 64) for place in (32, 64)},
    "first_wrong_sequence": (_NUMBER, (_ADDRESS, _ADDRESS, _NUMBER, _NUMBER)),
    "entries_ascend": (_NUMBER, (_ADDRESS, _NUMBER)),
    "blend": (None, (_ADDRESS, _NUMBER, _NUMBER, _ADDRESS, _ADDRESS)),
    "gather": (_NUMBER, (_ADDRESS, _ADDRESS, _NUMBER, _NUMBER, _ADDRESS, _ADDRESS)),
    "prepare_encoder_new": (_ADDRESS, (_ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _NUMBER)),
    "prepare_encoder_free": (None, (_ADDRESS,)),
    "prepare_encoder_classes": (None, (_ADDRESS, _ADDRESS, _ADDRESS, _NUMBER)),
    "prepare_encoder_asked": (_NUMBER, (_ADDRESS, _ADDRESS, _NUMBER)),
    "prepare_encode": (
        _NUMBER,
        (_ADDRESS, _ADDRESS, _ADDRESS, _NUMBER, _NUMBER, _NUMBER, _ADDRESS, _ADDRESS),
    ),
}


@cache
def library() -> ctypes.CDLL | None:
    """The library with its functions declared; None where there is none, and numpy does the same."""
    from trainer.kernels.native import libraries

    found = libraries.data()
    return declared(found) if isinstance(found, ctypes.CDLL) else None


def declared(found: ctypes.CDLL) -> ctypes.CDLL:
    """The library, every function of it with what it returns and takes."""
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def address(array: NDArray[Any]) -> int:
    """Where the array's first element lies. It has to be contiguous, and to live as long as the address is used."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)
