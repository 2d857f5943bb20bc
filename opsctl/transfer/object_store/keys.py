"""Names of files as keys of objects, which are UTF-8 and may hold no control characters everywhere; and back.

What a key cannot hold is written as %XX, byte by byte, and a % that two hexadecimal digits follow as %25.
"""

from __future__ import annotations

import os
import re

_UNFIT = re.compile(r"%(?=[0-9A-Fa-f]{2})|[\x00-\x1f\x7f\udc80-\udcff]")
_ESCAPED = re.compile(rb"%(25|[01][0-9A-F]|7F|[89A-F][0-9A-F])")


def key_of(name: str) -> str:
    """The key of a name, as Python has names of files."""
    return _UNFIT.sub(lambda found: "".join(f"%{byte:02X}" for byte in os.fsencode(found[0])), name)


def name_of(key: str) -> str:
    """The name behind a key."""
    return os.fsdecode(_ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), key.encode()))
