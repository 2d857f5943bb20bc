"""The facts that a message must contain, in any wording: names, numbers with units, paths, commands to type."""

from __future__ import annotations


def missing(text: str, *facts: object) -> list[str]:
    """Return those of `facts` that are not in `text`. Line breaks and repeated spaces do not count."""
    joined = " ".join(text.split())
    return [fact for fact in map(str, facts) if fact not in joined]
