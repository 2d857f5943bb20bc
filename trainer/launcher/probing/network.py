"""Measure the network between nodes: an all-reduce over all, then pairs in rounds, to find slow nodes and slow links.

It uses gloo between CPUs and NCCL between GPUs, through torch, as the training does. Rounds are those of a tournament
(the circle method): in each round every node talks to one other, and after one round fewer than nodes each has talked
to each. Received data is checked too.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import statistics
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from trainer.formats.attempt.node_samples import Effort
from trainer.launcher.probing.parts import Tell

_PINGS, _TIMES = 20, 4
_MEET_S = 15.0
_PAIR_S = 4.0
_LAST_S, _MARGIN_S = 5.0, 2.0
_THROUGH = "opsctl-probe-through"


@dataclass(frozen=True)
class Meeting:
    """The meeting point of the nodes, and the rank of this one."""

    address: str
    port: int
    nodes: int
    node_rank: int
    ranks_per_node: int
    local_rank: int

    @property
    def rank(self) -> int:
        """Among all processes of all nodes."""
        return self.node_rank * self.ranks_per_node + self.local_rank

    @property
    def world_size(self) -> int:
        """Processes of all nodes."""
        return self.nodes * self.ranks_per_node


def partner(node: int, turn: int, nodes: int) -> int | None:
    """Return the partner of `node` in round `turn`, both from 0; None if it pauses, as with an odd number of nodes."""
    seats = nodes + nodes % 2
    circle, last = seats - 1, seats - 1
    if node == last:
        other = turn * (seats // 2) % circle  # half of `turn`, modulo an odd number
    else:
        other = (turn - node) % circle
        other = last if other == node else other
    return other if other < nodes else None


def measure(tell: Tell, meeting: Meeting, effort: Effort) -> None:
    """Latency (us) and bandwidth (GB/s) of the ring and of each pair; what arrived other than it was sent."""
    began = time.monotonic()
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(meeting.address).is_loopback:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as distributed

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", meeting.local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"tcp://{meeting.address}:{meeting.port}",
        rank=meeting.rank,
        world_size=meeting.world_size,
        timeout=timedelta(seconds=_MEET_S),
    )
    tell("backend", distributed.get_backend())
    tell("rank", meeting.node_rank)
    _ring(tell, meeting, effort, device)
    _pairs(tell, meeting, effort, device)
    _wait_for_others(meeting, latest_s(began, time.monotonic(), effort.network_s))


def latest_s(began_s: float, now_s: float, limit_s: float) -> float:
    """Until when the first process waits for the others: a slow node holds up those that talk to it after it.

    As long again as it took itself and a little more, and never so long that its own time is up.
    """
    return min(now_s + (now_s - began_s) + _LAST_S, began_s + limit_s - _MARGIN_S)


def _wait_for_others(meeting: Meeting, until_s: float) -> None:
    """Wait for the others: the first process has the store of the pairs, so it leaves last, or when its time is up."""
    import torch.distributed as distributed

    store = distributed.distributed_c10d._get_default_store()
    try:
        here = store.add(_THROUGH, 1)
    except RuntimeError:
        return  # the first one has gone: what this node measured counts all the same
    while meeting.rank == 0 and here < meeting.world_size and time.monotonic() < until_s:
        time.sleep(0.02)
        here = store.add(_THROUGH, 0)


def _ring(tell: Tell, meeting: Meeting, effort: Effort, device: Any) -> None:
    """Bus bandwidth as NCCL's tests count it: 2 (n - 1) / n of the bytes, for each process."""
    import torch
    import torch.distributed as distributed

    size = meeting.world_size
    small = torch.ones(1, device=device)
    values = torch.ones(effort.ring_bytes // 4, device=device)

    def reduce(tensor: Any) -> None:
        distributed.all_reduce(tensor)
        _settle(device)

    reduce(small)
    times = []
    for _ in range(_PINGS):
        before = time.perf_counter()
        reduce(small)
        times.append(time.perf_counter() - before)
    tell("ring_latency_us", 1e6 * statistics.median(times))
    reduce(values)
    tell("ring_wrong", int(torch.count_nonzero(values != size)))
    times = []
    for _ in range(_TIMES):
        before = time.perf_counter()
        reduce(values)
        times.append(time.perf_counter() - before)
    tell("ring_gbs", 2 * (size - 1) / size * values.nbytes / statistics.median(times) / 1e9)


def _pairs(tell: Tell, meeting: Meeting, effort: Effort, device: Any) -> None:
    """Test the pairs. A link that fails is reported and the next one tried: the node at its other end may be gone."""
    import torch

    mine = torch.full((effort.pair_bytes // 4,), float(meeting.node_rank + 1), device=device)
    rounds = range(min(effort.rounds, meeting.nodes - 1 + meeting.nodes % 2))
    for other in filter(
        lambda found: found is not None, (partner(meeting.node_rank, t, meeting.nodes) for t in rounds)
    ):
        assert other is not None
        try:
            _pair(tell, meeting, other, mine, device)
        except RuntimeError as error:
            tell("link_failed", str(error).partition("\n")[0], of=other)


def _pair(tell: Tell, meeting: Meeting, other: int, mine: Any, device: Any) -> None:
    import torch
    import torch.distributed as distributed

    peer = other * meeting.ranks_per_node + meeting.local_rank
    theirs, limit = torch.zeros_like(mine), timedelta(seconds=_PAIR_S)

    def exchange(elements: int) -> None:
        works = distributed.batch_isend_irecv(
            [
                distributed.P2POp(distributed.isend, mine[:elements], peer),
                distributed.P2POp(distributed.irecv, theirs[:elements], peer),
            ]
        )
        for work in works:
            work.wait(limit)
        _settle(device)

    exchange(1)
    times = []
    for _ in range(_PINGS):
        before = time.perf_counter()
        exchange(1)
        times.append(time.perf_counter() - before)
    tell("link_latency_us", 1e6 * statistics.median(times), of=other)
    times = []
    for _ in range(1 + _TIMES):
        before = time.perf_counter()
        exchange(mine.numel())
        times.append(time.perf_counter() - before)
    tell("link_gbs", mine.nbytes / statistics.median(times[1:]) / 1e9, of=other)
    tell("link_wrong", int(torch.count_nonzero(theirs != other + 1)), of=other)


def _settle(device: Any) -> None:
    """Wait until a GPU has done its queued work; a read of one element does this."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
