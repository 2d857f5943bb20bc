"""Measurements of nodes: samples during an attempt, and the results of the probe."""

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
#: The number of iterations in one timing report of a rank.
TIMED_ITERATIONS = 10


def samples_file(node_rank: int) -> str:
    """Return the file name of a node's samples."""
    return SAMPLES_FILES.replace("*", str(node_rank))


def timings_file(node_rank: int) -> str:
    """Return the file name of the timings of a node's ranks."""
    return TIMINGS_FILES.replace("*", str(node_rank))


class GpuSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU's values from NVML; null if NVML does not report one."""

    index: Annotated[int, Meta(description="The GPU's number in NVML.")]
    memory_used_bytes: Annotated[int | None, Meta(description="Used memory, by all processes.")] = None
    memory_bytes: Annotated[int | None, Meta(description="Total memory.")] = None
    temperature_c: Annotated[int | None, Meta(description="Temperature of the chip, degrees Celsius.")] = None
    clock_mhz: Annotated[int | None, Meta(description="Current clock of its multiprocessors.")] = None
    most_clock_mhz: Annotated[int | None, Meta(description="Highest clock of its multiprocessors.")] = None
    power_w: Annotated[float | None, Meta(description="Power draw, watts.")] = None
    ecc_corrected: Annotated[int | None, Meta(description="Corrected memory errors since the driver started.")] = None
    ecc_uncorrected: Annotated[int | None, Meta(description="Uncorrected memory errors since the driver started.")] = (
        None
    )
    throttled: Annotated[tuple[str, ...], Meta(description="Reason why its clock is reduced; empty if it is not.")] = ()


class NodeSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node's values at one moment."""

    at: Annotated[Moment, Meta(description="Time by the node's clock.")]
    node: Annotated[str, Meta(description="Its name.")]
    memory_bytes: Annotated[int, Meta(description="Host memory in total.")] = 0
    available_bytes: Annotated[int, Meta(description="Host memory available to programs.")] = 0
    limit_bytes: Annotated[
        int | None, Meta(description="Memory limit of the job's control groups; null: no limit.")
    ] = None
    limited_bytes: Annotated[int | None, Meta(description="Used part of that limit.")] = None
    swap_bytes: Annotated[int, Meta(description="Swap space.")] = 0
    swap_used_bytes: Annotated[int, Meta(description="Used part of it.")] = 0
    shm_bytes: Annotated[int, Meta(description="Size of /dev/shm.")] = 0
    shm_used_bytes: Annotated[int, Meta(description="Used part of it.")] = 0
    tmp_free_bytes: Annotated[int | None, Meta(description="Space in /tmp that users can write.")] = None
    run_free_bytes: Annotated[
        int | None, Meta(description="Space in the attempt's file system that users can write.")
    ] = None
    load: Annotated[float, Meta(description="Runnable processes, averaged over a minute.")] = 0.0
    cpus: Annotated[int, Meta(description="CPUs of the node, with hyper-threads.")] = 0
    gpus: Annotated[tuple[GpuSample, ...], Meta(description="The node's GPUs; empty if NVML reports none.")] = ()

    @property
    def memory_share(self) -> float:
        """The used share of host memory, from 0 to 1: of the node or of the job, whichever is higher."""
        host = 1.0 - self.available_bytes / self.memory_bytes if self.memory_bytes > 0 else 0.0
        own = (self.limited_bytes or 0) / self.limit_bytes if self.limit_bytes else 0.0
        return max(host, own)

    @property
    def shm_share(self) -> float:
        """The used share of /dev/shm, from 0 to 1."""
        return self.shm_used_bytes / self.shm_bytes if self.shm_bytes > 0 else 0.0


class RankTiming(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's own computing time in its newest iterations, without waiting for other ranks."""

    rank: int
    stage: int  # of the pipeline
    iteration: int  # the last of them
    iterations: int  # their number
    own_s: float  # seconds in forward and backward passes, in total
    step_s: float  # seconds of the whole steps, in total
    node: str = ""
    at: Moment | None = None


#: Values next to a measure's name.
BEGAN, ENDED, FAILED, DONE = "began", "ended", "failed", "done"
#: A part that exceeded its time: it hangs, or is only slow.
LATE = "late"
#: The part that means the whole program on a node.
PROGRAM = "program"
#: The part in which nodes communicate.
NETWORK = "network"
LONGEST_TEXT = 300


class ProbeLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a node's probe: a measured number, a text, or its progress."""

    node: str
    part: str
    what: str
    number: float | None = None
    text: str = ""
    of: int | None = None  # the GPU's number, or the position of the node at the other end of a link


@dataclass(frozen=True)
class Effort:
    """The limits of a probe. Times are wall clock; a part that exceeds its time is killed."""

    name: str
    nodes_s: float  # each node alone, all parts
    network_s: float  # all nodes together
    part_s: float  # one part
    window_s: float  # duration of a rate measurement
    disk_bytes: int
    disk_s: float  # longest duration of the write
    verified_share: float  # share of the free memory that is filled and read back
    rounds: int  # of pairs; all pairs need one fewer than nodes
    pair_bytes: int
    ring_bytes: int

    @property
    def whole_s(self) -> float:
        """The longest time in seconds from the first srun to the last: both passes, and killing a hung step in each."""
        return self.nodes_s + self.network_s + 3 * STEP_END_S


#: Time to kill a hung step.
STEP_END_S = 4.0
QUICK = Effort("quick", 28.0, 20.0, 12.0, 0.15, 64 << 20, 0.5, 0.0, 31, 4 << 20, 16 << 20)
FULL = Effort("full", 240.0, 300.0, 120.0, 3.0, 1 << 30, 20.0, 0.5, 100_000, 64 << 20, 256 << 20)
EFFORTS = {one.name: one for one in (QUICK, FULL)}
