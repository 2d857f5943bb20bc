"""The verdict on a failed attempt: cause, place, fault and evidence."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from trainer.formats.json_text import Moment


class Cause(StrEnum):
    """A cause of a failure; also a kind of evidence against a node."""

    GPU_ERROR = "gpu-error"
    GPU_ECC = "gpu-ecc"
    GPU_LOST = "gpu-lost"
    NCCL = "nccl"
    NETWORK = "network"
    GPU_OOM = "gpu-oom"
    HOST_OOM = "host-oom"
    SHM = "shm"
    NODE_FAILURE = "node-failure"
    TIME_LIMIT = "time-limit"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    DISK_FULL = "disk-full"
    QUOTA = "quota"
    DATA = "data"
    CHECKPOINT = "checkpoint"
    USER_CODE = "user-code"
    DIVERGED = "diverged"
    HANG = "hang"
    UNKNOWN = "unknown"


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    """A line of evidence."""

    source: Annotated[str, Meta(description="The file, or another source: `sacct`, `slurm`.")]
    text: Annotated[str, Meta(description="The line, printable, cut if long.")]
    line: Annotated[int | None, Meta(description="Its number in the file, from 1; null if unknown.")] = None
    at: Annotated[Moment | None, Meta(description="Time of the line; null if unknown.")] = None


class StackGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks with equal stacks."""

    ranks: Annotated[str, Meta(description="Their numbers, folded: `0-6,8`.")]
    count: Annotated[int, Meta(description="Number of ranks.")]
    nodes: Annotated[tuple[str, ...], Meta(description="Names of their nodes.")] = ()
    frames: Annotated[tuple[str, ...], Meta(description="`function (file:line)`, innermost first.")] = ()
    collective: Annotated[str, Meta(description="Collective that they wait in, such as `all_reduce`; else empty.")] = ""
    is_odd: Annotated[bool, Meta(description="True if the others wait for these.")] = False


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of triage on a failure. Unknown fields are empty: nothing is guessed."""

    cause: Annotated[str, Meta(description="A Cause, or a value of another release.")]
    summary: Annotated[str, Meta(description="The root cause in one sentence.")] = ""
    node: Annotated[str, Meta(description="Node that failed first; empty if unknown.")] = ""
    rank: Annotated[int | None, Meta(description="The rank that failed first.")] = None
    at: Annotated[Moment | None, Meta(description="Time of the failure.")] = None
    user_fault: Annotated[bool, Meta(description="True if the user's code, data or settings caused it.")] = False
    confidence: Annotated[float, Meta(description="Confidence, 0 to 1.")] = 0.0
    evidence: Annotated[tuple[Quote, ...], Meta(description="Lines of evidence, the strongest first.")] = ()
    cascade: Annotated[tuple[Quote, ...], Meta(description="Consequences: lost peers, aborted ranks.")] = ()
    todo: Annotated[tuple[str, ...], Meta(description="Advice, then commands.")] = ()

    @property
    def is_known(self) -> bool:
        """Return True if a cause was found."""
        return self.cause != Cause.UNKNOWN

    @property
    def words(self) -> str:
        """Return cause and place in a few words, for a log line, a table or an alert."""
        place = " ".join(filter(None, (f"rank {self.rank}" if self.rank is not None else "", self.node)))
        return f"{self.cause}{f' ({place})' if place else ''}" if self.is_known else "cause not found"
