"""What an attempt died of, as far as that is known: the cause, where it struck, whose fault, and what says so."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from trainer.formats.json_text import Moment


class Cause(StrEnum):
    """What a training dies of; also what evidence against a node may be of."""

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
    """A line that something rests on."""

    source: Annotated[str, Meta(description="The file, or who said it: `sacct`, `slurm`.")]
    text: Annotated[str, Meta(description="The line, printable, cut where it is long.")]
    line: Annotated[int | None, Meta(description="Its number in the file, from 1; null where it has none.")] = None
    at: Annotated[Moment | None, Meta(description="When it was said; null where nobody knows.")] = None


class StackGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks whose stacks are equal."""

    ranks: Annotated[str, Meta(description="Their numbers, folded: `0-6,8`.")]
    count: Annotated[int, Meta(description="How many they are.")]
    nodes: Annotated[tuple[str, ...], Meta(description="Names of their nodes.")] = ()
    frames: Annotated[tuple[str, ...], Meta(description="`function (file:line)`, innermost first.")] = ()
    collective: Annotated[str, Meta(description="What they wait in, `all_reduce`; empty where it is none.")] = ""
    is_odd: Annotated[bool, Meta(description="Whether the others wait for these.")] = False


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What triage says of one bad end. What is not known is empty: nothing is guessed."""

    cause: Annotated[str, Meta(description="A Cause, or a word that only another release knows.")]
    summary: Annotated[str, Meta(description="The root cause in one sentence.")] = ""
    node: Annotated[str, Meta(description="Name of the node where it struck first; empty where not known.")] = ""
    rank: Annotated[int | None, Meta(description="The rank that failed first.")] = None
    at: Annotated[Moment | None, Meta(description="When it struck.")] = None
    user_fault: Annotated[bool, Meta(description="Whether code, data or settings of the user did it.")] = False
    confidence: Annotated[float, Meta(description="From 0, a guess, to 1, said by who knows.")] = 0.0
    evidence: Annotated[tuple[Quote, ...], Meta(description="The lines it rests on, the strongest first.")] = ()
    cascade: Annotated[tuple[Quote, ...], Meta(description="What followed from it: lost peers, aborted ranks.")] = ()
    todo: Annotated[tuple[str, ...], Meta(description="What to do, then what to type.")] = ()

    @property
    def is_known(self) -> bool:
        """Whether a cause was found at all."""
        return self.cause != Cause.UNKNOWN

    @property
    def words(self) -> str:
        """Cause and place in a few words, for a line of a log, a table or an alert."""
        place = " ".join(filter(None, (f"rank {self.rank}" if self.rank is not None else "", self.node)))
        return f"{self.cause}{f' ({place})' if place else ''}" if self.is_known else "cause not found"
