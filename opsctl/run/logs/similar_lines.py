"""Lines of iterations that look like one that was read part by part: read several times faster. Pure."""

from __future__ import annotations

from functools import lru_cache

from opsctl.run.logs.lines import split_logger, split_prefix
from trainer.formats.logs.training_line import Layout, TrainingLine


def example_of(text: str) -> str:
    """What later lines are held against: the whole line without what a launcher and a logger put before it."""
    return split_logger(split_prefix(text)[1])[1]


def read_alike(text: str, example: str) -> TrainingLine | None:
    """What `parse_line` says of a line that looks like `example`; None for any other, and without an example."""
    if not example or not text.endswith(("|", " ")):
        return None
    _, said = split_prefix(text)
    at, said = split_logger(said)
    return _layout(example).read(said, at)


@lru_cache(maxsize=16)
def _layout(example: str) -> Layout:
    return Layout(example)
