"""Ranks doing one thing together: what one finds out, or fails at, all of them know, so that none waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch.distributed as dist

T = TypeVar("T")


class Refusal(Exception):
    """The training cannot go on, and every rank knows it; the text is one line for the person who started it."""


def from_first_rank(act: Callable[[], T], expected: tuple[type[Exception], ...]) -> T:
    """Return the result of `act` on global rank 0, on every rank. Collective.

    An `expected` exception there becomes a Refusal with its text on every rank; the value must be plain data.
    """
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = act()
        except expected as error:
            outcome[1] = str(error)
    dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise Refusal(outcome[1])
    return cast(T, outcome[0])


def on_every_rank(act: Callable[[], T], expected: tuple[type[Exception], ...]) -> T:
    """Return the result of `act` here, once it has succeeded everywhere. Collective; `act` itself must not be.

    After an `expected` exception on any rank, all raise a Refusal with the text of the lowest such rank.
    """
    value, text = None, None
    try:
        value = act()
    except expected as error:
        text = str(error)
    texts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    failed = next((one for one in texts if one is not None), None)
    if failed is not None:
        raise Refusal(failed)
    return cast(T, value)
