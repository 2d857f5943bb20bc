"""What a probe found, as `probe.json` has it and `opsctl probe --json` prints it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from trainer.formats.json_text import Moment

SCHEMA_VERSION = 1


class Standing(StrEnum):
    """What is to be thought of a node, the best first.

    Slow is what has fallen behind the others by measurement or was not through in time: it is trained on only for want
    of others. Bad is never trained on.
    """

    FINE = "fine"
    SUSPICIOUS = "suspicious"
    SLOW = "slow"
    BAD = "bad"

    @property
    def rank(self) -> int:
        """0 for the best."""
        return _RANKS[self]


_RANKS = {standing: rank for rank, standing in enumerate(Standing)}


class Reason(msgspec.Struct, frozen=True):
    """One thing that speaks against a node."""

    standing: Annotated[Standing, Meta(description="`suspicious`, `slow` or `bad`.")]
    measure: Annotated[str, Meta(description="What was measured: `products.fp32_gflops`.")]
    words: Annotated[str, Meta(description="What was found, with its numbers and those of the others.")]


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One node."""

    node: Annotated[str, Meta(description="Its name.")]
    standing: Annotated[Standing, Meta(description="`fine`, `suspicious`, `slow` or `bad`.")]
    hardware: Annotated[str, Meta(description="Its processors and GPUs; nodes are compared with those of the same.")]
    reasons: Annotated[tuple[Reason, ...], Meta(description="What speaks against it, the worst first.")] = ()
    numbers: Annotated[
        dict[str, float], Meta(description="What was measured; of GPUs and links the slowest, or the most errors.")
    ] = {}


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole probe."""

    schema_version: Annotated[int, Meta(description="1.")] = SCHEMA_VERSION
    at: Annotated[Moment, Meta(description="When it began.")]
    effort: Annotated[str, Meta(description="`quick` or `full`.")]
    took_s: Annotated[float, Meta(description="How long it took, seconds.")]
    nodes: Annotated[tuple[NodeReport, ...], Meta(description="The nodes in Slurm's order.")]
    general: Annotated[
        tuple[str, ...], Meta(description="What speaks against most nodes alike and so against none of them.")
    ] = ()
    not_seen: Annotated[tuple[str, ...], Meta(description="What could not be tested at all, and why.")] = ()
    links: Annotated[
        tuple[str, ...], Meta(description="Links between two nodes that are slow while neither node is, in words.")
    ] = ()
    trained_on: Annotated[
        tuple[str, ...], Meta(description="The nodes that the training then ran on; empty outside of a run's job.")
    ] = ()
    spare: Annotated[tuple[str, ...], Meta(description="Those that it left idle.")] = ()

    def of(self, standing: Standing) -> list[NodeReport]:
        """The nodes of which that is to be thought."""
        return [one for one in self.nodes if one.standing == standing]
