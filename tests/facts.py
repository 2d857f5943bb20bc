"""The facts that a message must contain, in any wording: names, numbers with units, paths, commands to type."""

from __future__ import annotations

import re


def missing(text: str, *facts: object) -> list[str]:
    """Return those of `facts` that `text` lacks as whole words. Line breaks and repeated spaces do not count."""
    joined = " ".join(text.split())
    return [fact for fact in map(str, facts) if not re.search(_as_words(fact), joined)]


def _as_words(fact: str) -> str:
    before = r"(?<!\w)" if re.match(r"\w", fact) else ""
    after = r"(?!\w)" if re.search(r"\w$", fact) else ""
    return before + re.escape(fact) + after
