"""What nodes report of themselves: samples during an attempt, and the results of the probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from trainer.formats.json_text import Moment

SAMPLES_FILES = "samples-*.jsonl"
TIMINGS_FILES = "timings-*.jsonl"
LARGEST_BYTES = 8 << 20
PIPE_VARIABLE = "OPSCTL_NODE_SAMPLER"
#: A rank tells its timing of so many iterations at once.
TIMED_ITERATIONS = 10


def samples_file(node_rank: int) -> str:
    """The name of a node's samples."""
    return SAMPLES_FILES.replace("*", str(node_rank))


def timings_file(node_rank: int) -> str:
    """The name of the timings of a node's ranks."""
    return TIMINGS_FILES.replace("*", str(node_rank))


class GpuSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU, as NVML tells it; null where it does not tell."""

    index: Annotated[int, Meta(description="NVML's number of it.")]
    memory_used_bytes: Annotated[int | None, Meta(description="Of its memory, by whatever process.")] = None
    memory_bytes: Annotated[int | None, Meta(description="All of it.")] = None
    temperature_c: Annotated[int | None, Meta(description="Of the chip, degrees Celsius.")] = None
    clock_mhz: Annotated[int | None, Meta(description="Of its multiprocessors now.")] = None
    most_clock_mhz: Annotated[int | None, Meta(description="The most that it can run them at.")] = None
    power_w: Annotated[float | None, Meta(description="What it draws, watts.")] = None
    ecc_corrected: Annotated[int | None, Meta(description="Memory errors corrected since the driver began.")] = None
    ecc_uncorrected: Annotated[int | None, Meta(description="Those that it could not.")] = None
    throttled: Annotated[tuple[str, ...], Meta(description="Why its clock is held down; empty where it is not.")] = ()


class NodeSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node at one moment."""

    at: Annotated[Moment, Meta(description="When, by its own clock.")]
    node: Annotated[str, Meta(description="Its name.")]
    memory_bytes: Annotated[int, Meta(description="Host memory, all of it.")] = 0
    available_bytes: Annotated[int, Meta(description="What of it programs could still get.")] = 0
    limit_bytes: Annotated[int | None, Meta(description="What the job's control groups allow; null: all.")] = None
    limited_bytes: Annotated[int | None, Meta(description="What of that limit is used.")] = None
    swap_bytes: Annotated[int, Meta(description="Swap space.")] = 0
    swap_used_bytes: Annotated[int, Meta(description="What of it is used.")] = 0
    shm_bytes: Annotated[int, Meta(description="Size of /dev/shm.")] = 0
    shm_used_bytes: Annotated[int, Meta(description="What of it is used.")] = 0
    tmp_free_bytes: Annotated[int | None, Meta(description="Free for users in /tmp.")] = None
    run_free_bytes: Annotated[int | None, Meta(description="Free for users where the attempt's folder is.")] = None
    load: Annotated[float, Meta(description="Processes that want to run, over a minute.")] = 0.0
    cpus: Annotated[int, Meta(description="CPUs of the node, hyper-threads counted.")] = 0
    gpus: Annotated[tuple[GpuSample, ...], Meta(description="Its GPUs; empty where NVML shows none.")] = ()

    @property
    def memory_share(self) -> float:
        """How full host memory is, from 0 to 1: the node's, or the job's part where that is fuller."""
        host = 1.0 - self.available_bytes / self.memory_bytes if self.memory_bytes > 0 else 0.0
        own = (self.limited_bytes or 0) / self.limit_bytes if self.limit_bytes else 0.0
        return max(host, own)

    @property
    def shm_share(self) -> float:
        """How full /dev/shm is, from 0 to 1."""
        return self.shm_used_bytes / self.shm_bytes if self.shm_bytes > 0 else 0.0


class RankTiming(msgspec.Struct, frozen=True, kw_only=True):
    """How long one rank computed by itself in its newest iterations; waiting for others is no part of it."""

    rank: int
    stage: int  # of the pipeline
    iteration: int  # the last of them
    iterations: int  # how many
    own_s: float  # seconds in forward and backward passes, of all of them together
    step_s: float  # seconds of the whole steps
    node: str = ""
    at: Moment | None = None


#: What a line may say beside a measure's name.
BEGAN, ENDED, FAILED, DONE = "began", "ended", "failed", "done"
#: Of a part whose time was up: it hangs, or is only slow.
LATE = "late"
#: The part that stands for the whole program on a node.
PROGRAM = "program"
#: The part in which nodes talk to each other.
NETWORK = "network"
LONGEST_TEXT = 300


class ProbeLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a node says: a number or a text that it found, or how far it has come."""

    node: str
    part: str
    what: str
    number: float | None = None
    text: str = ""
    of: int | None = None  # which of the node's GPUs, or the place of the node at the other end of a link


@dataclass(frozen=True)
class Effort:
    """How much a probe may take. Times are wall clock; a part that is not through with its own is killed."""

    name: str
    nodes_s: float  # each node by itself, all parts
    network_s: float  # all nodes together
    part_s: float  # one part
    window_s: float  # for which a rate is measured
    disk_bytes: int
    disk_s: float  # for which it is written at most
    verified_share: float  # of the free memory, filled and read back
    rounds: int  # of pairs; all that there are need one fewer than nodes
    pair_bytes: int
    ring_bytes: int

    @property
    def whole_s(self) -> float:
        """Seconds from the first srun to the last, at most: both passes, and ending a step of each that hangs."""
        return self.nodes_s + self.network_s + 3 * STEP_END_S


#: To end a step in which something hangs.
STEP_END_S = 4.0
QUICK = Effort("quick", 28.0, 20.0, 12.0, 0.15, 64 << 20, 0.5, 0.0, 31, 4 << 20, 16 << 20)
FULL = Effort("full", 240.0, 300.0, 120.0, 3.0, 1 << 30, 20.0, 0.5, 100_000, 64 << 20, 256 << 20)
EFFORTS = {one.name: one for one in (QUICK, FULL)}
