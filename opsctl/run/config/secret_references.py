"""Where a secret is kept, as text that others may read: a file of one's own, a variable, a program. Pure."""

from __future__ import annotations

import re

REFERENCES = ("file", "env", "command")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*(?=:)", re.IGNORECASE)


def kind_of(text: str) -> str:
    """A reference's or URL's word before the colon, in lower case; empty where it has none."""
    found = _SCHEME.match(text)
    return found.group().lower() if found else ""


def is_reference(text: str) -> bool:
    """Whether the secret is kept elsewhere."""
    return kind_of(text) in REFERENCES
