"""The known name closest to an unknown one, by its words as other programs write them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: The least likeness for a suggestion.
LIKE_ENOUGH = 0.6
#: The least likeness of two words, of at least so many letters, to count one as a misspelling of the other.
_SAME_WORD, _LETTERS = 0.8, 4
#: Other programs' terms, as a pattern over a name's words -> our words.
_SYNONYMS = tuple(
    (re.compile(rf"\b(?:{theirs})\b"), ours)
    for theirs, ours in (
        ("learning rate", "lr"),
        ("schedule|scheduler", "decay style"),
        ("(?:max|total|num|train) (?:train )?(?:steps?|iterations?|iters?|updates)", "train iters"),
        ("steps?|iterations?|updates", "iters"),
        ("(?:max )?sequence (?:length|len)|(?:max )?seq len|context (?:length|len|size)|block size", "seq length"),
        ("d model|n embd|model dim|embed dim|hidden dim", "hidden size"),
        ("intermediate size|ffn dim|ffn size|d ff", "ffn hidden size"),
        ("tp(?: size| degree)?|tensor parallel(?: size| degree)?", "tensor model parallel size"),
        ("pp(?: size| degree)?|pipeline parallel(?: size| degree)?", "pipeline model parallel size"),
        ("bsz?", "batch size"),
        ("wd", "weight decay"),
        ("gradients?", "grad"),
        ("clipping", "clip"),
        ("epsilon", "eps"),
        ("ckpts?|checkpoints", "checkpoint"),
        ("every|freq|frequency", "interval"),
        ("checkpoint interval", "save interval"),
        ("optim", "optimizer"),
        ("n|number(?: of)?", "num"),
        ("layer", "layers"),
        ("head", "heads"),
        ("vocabulary", "vocab"),
        ("walltime|time limit", "time"),
        ("folder|directory", "dir"),
    )
)


def nearest_name(wanted: str, known: Iterable[str], least: float = LIKE_ENOUGH) -> str | None:
    """Return the name of `known` most like `wanted`; None if none reaches the likeness `least`.

    Names are words joined by `_` or `-`. Their order does not matter, and a misspelled word counts as the word.
    """
    scored = [(likeness(wanted, name), name) for name in known]
    best = max(scored, key=lambda one: one[0], default=None)
    return best[1] if best is not None and best[0] >= (least, 0.0) else None


def likeness(one: str, other: str) -> tuple[float, float]:
    """Return the likeness of two names, 0 to 1: the better of words and letters, and then by letters alone."""
    from difflib import SequenceMatcher

    by_letters = SequenceMatcher(None, one, other).ratio()
    words, others = _words(one), _words(other)
    left = list(others)
    for word in words:
        same = next((known for known in left if _is_same_word(word, known)), None)
        if same is not None:
            left.remove(same)
    by_words = 2 * (len(others) - len(left)) / (len(words) + len(others)) if words and others else 0.0
    return max(by_words, by_letters), by_letters


def _words(name: str) -> list[str]:
    text = re.sub(r"[_\W]+", " ", name.lower()).strip()
    for theirs, ours in _SYNONYMS:
        text = theirs.sub(ours, text)
    return text.split()


def _is_same_word(one: str, other: str) -> bool:
    from difflib import SequenceMatcher

    if one == other:
        return True
    return min(len(one), len(other)) >= _LETTERS and SequenceMatcher(None, one, other).ratio() >= _SAME_WORD
