"""The facts that a message must hold. Its wording is free."""

from __future__ import annotations

import re


def missing(text: str, *facts: str) -> list[str]:
    """Return the facts that `text` lacks as whole words: option names, paths, numbers, commands to type."""
    return [fact for fact in facts if not re.search(_as_words(fact), text)]


def _as_words(fact: str) -> str:
    before = r"(?<!\w)" if re.match(r"\w", fact) else ""
    after = r"(?!\w)" if re.search(r"\w$", fact) else ""
    return before + re.escape(fact) + after
