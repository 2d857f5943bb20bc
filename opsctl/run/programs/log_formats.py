"""The formats of other programs' logs, and their translation to training lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from opsctl.run.programs.kind import Kind, Progress, no_progress
from opsctl.run.programs.progress import Translator
from opsctl.run.programs.registry import KINDS

_NANOGPT = re.compile(r"iter (?P<iteration>\d{1,18}): loss (?P<loss>\d+\.\d+|nan|inf), time (?P<ms>\d+\.\d+)ms")


def _nanogpt(line: str) -> Progress | None:
    match = _NANOGPT.search(line)
    if match is None:
        return None
    # It counts from 0.
    return Progress(
        int(match["iteration"]) + 1, loss=float(match["loss"]), seconds_per_iteration=float(match["ms"]) / 1000
    )


def _nanogpt_reader() -> Callable[[str], Progress | None]:
    return _nanogpt


def _of_kind(kind: Kind) -> Callable[[], Callable[[str], Progress | None]]:
    def reader() -> Callable[[str], Progress | None]:
        return kind.follow(0, 1) if kind.follow else kind.progress

    return reader


#: Name -> a function that returns the reader of a log from its beginning.
_TRANSLATED = {
    **{name: _of_kind(kind) for name, kind in KINDS.items() if kind.progress is not no_progress},
    "nanogpt": _nanogpt_reader,
}
#: All formats by name, also those that `run.logs` parses as they are.
FORMATS = ("megatron-deepspeed", *KINDS, *(name for name in _TRANSLATED if name not in KINDS))


def training_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the training lines of a log in any format that needs a translation, piece by piece.

    The format is the one in which the first piece with an iteration has most of them.
    """
    translators = [Translator(reader(), clock=None) for reader in _TRANSLATED.values()]
    for piece in chain(pieces, [b"\n"]):
        found = [(one.lines(piece), one) for one in translators]
        lines, best = max(found, key=lambda one: len(one[0]))
        if lines:
            translators = [best]
            yield "".join(f"{line}\n" for line in lines).encode()
