"""The data path in C++ (`csrc/data`), if it is built. Each call has an equivalent in Python next to it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from numpy.typing import NDArray

_ADDRESS, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_SHUFFLE = (None, (_ADDRESS, _NUMBER, _ADDRESS, _ADDRESS))
_SAMPLE_INDEX = (_NUMBER, (_ADDRESS, _ADDRESS, _NUMBER, _NUMBER, _NUMBER, _ADDRESS))
#: Result and argument types. The C++ sources explain them.
_SIGNATURES = {
    "shuffle_32": _SHUFFLE,
    "shuffle_64": _SHUFFLE,
    "shuffle_targets": (None, (ctypes.c_uint64, ctypes.c_uint64, _ADDRESS, _ADDRESS, _ADDRESS)),
    **{f"sample_index_{document}_{place}": _SAMPLE_INDEX for document in (32, 64) for place in (32, 64)},
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
    """Return the library with declared functions; None if it is not built, and numpy is used."""
    from trainer.kernels.native import libraries

    found = libraries.data()
    return declared(found) if isinstance(found, ctypes.CDLL) else None


def declared(found: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the argument and result types of all the library's functions."""
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def address(array: NDArray[Any]) -> int:
    """Return the address of a contiguous array's first element. The array must outlive its use."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)
