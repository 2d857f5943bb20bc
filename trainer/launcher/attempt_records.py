"""The records of a launcher in its attempt's folder: which rank runs where, and this node's first rank to fail."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from trainer.core.console import complain
from trainer.core.files import HeldFolder, write_atomically
from trainer.formats.attempt.attempt_records import Failure, NodeClock, RankPlace, clock_file, failure_file, ranks_file
from trainer.formats.attempt.error_file import read_error_file
from trainer.formats.data import data_sources
from trainer.formats.json_text import json_file_text
from trainer.launcher.first_failure import Death, first_to_fail
from trainer.recipe.options import OptionsError, given

REFUSED_STATUS = 2


@dataclass(frozen=True)
class Node:
    """The part of a launch on this node."""

    nnodes: int
    nproc_per_node: int
    node_rank: int
    master_addr: str
    master_port: int
    attempt_folder: Path
    node_name: str
    main: str  # module with `main(arguments) -> int`
    shutdown_s: int

    @property
    def ranks_file(self) -> Path:
        """The file of this node's rank map, written by RankRecord."""
        return self.attempt_folder / ranks_file(self.node_rank)

    @property
    def own_folder(self) -> Path:
        """Output and error files of this node's ranks."""
        return self.attempt_folder / self.node_name

    def global_rank(self, local_rank: int) -> int:
        """`local_rank` counts from 0 on this node; every node has as many ranks."""
        return self.node_rank * self.nproc_per_node + local_rank


class RankRecord:
    """`ranks-R.json`: written whole before the fork, and again when every rank has said its pid."""

    def __init__(self, node: Node) -> None:
        self._node = node
        gpus = _gpus_of_this_node()
        self._ranks = [
            RankPlace(
                rank=node.global_rank(local_rank),
                node=node.node_name,
                gpu=gpus[local_rank] if local_rank < len(gpus) else "",
                local_rank=local_rank,
            )
            for local_rank in range(node.nproc_per_node)
        ]
        write_atomically(node.ranks_file, json_file_text(self._ranks))
        self.folder = HeldFolder(node.attempt_folder)
        self.folder.descriptor()

    def note_pid(self, local_rank: int, pid: int) -> None:
        """Keep a rank's pid; the last one writes the file. A disk that does not take it is no error."""
        self._ranks[local_rank] = msgspec.structs.replace(self._ranks[local_rank], pid=pid)
        if all(rank.pid for rank in self._ranks):
            with contextlib.suppress(OSError):  # a full disk must not blind the death watch
                write_atomically(self._node.ranks_file, json_file_text(self._ranks))


def record_clock(node: Node) -> None:
    """Write `clock-R.json`, so that a node whose clock is off is seen. A disk that does not take it is no error."""
    with contextlib.suppress(OSError):
        said = NodeClock(node.node_name, datetime.now().astimezone())
        write_atomically(node.attempt_folder / clock_file(node.node_rank), json_file_text(said))


def _gpus_of_this_node() -> list[str]:
    """Return the GPUs in local rank order, as Slurm or the user named them; numbered if Slurm gives only a count."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("SLURM_STEP_GPUS") or ""
    if not named and os.environ.get("SLURM_GPUS_ON_NODE", "").isdecimal():
        return [str(number) for number in range(int(os.environ["SLURM_GPUS_ON_NODE"]))]
    return [gpu.strip() for gpu in named.split(",") if gpu.strip()]


def record_failure(
    node: Node,
    deaths_seen: list[Death],
    ended_at: datetime | None,
    error: Any,
    trainer_arguments: Sequence[str],
    folder: HeldFolder | None = None,
) -> int:
    """Write `failure-R.json` for the first rank to fail. Ranks that died after the launch was ended did not fail.

    folder: the attempt's, opened at the launch: a later attempt in the job may have one of the same name by now.
    SIGBUS ends a rank that reads past the end of a mapped file: the message then names the data file that is too short.
    """
    told = None if error is None else _death_known_to_the_agent(error)
    deaths = [death for death in _all_seen(deaths_seen, told) if ended_at is None or death.at < ended_at]
    left = sorted(node.own_folder.glob("*/attempt_*/*/error.json"))
    error_files = {int(path.parent.name): path for path in left if path.parent.name.isdecimal()}

    def message_of(local_rank: int) -> str:
        return read_error_file(error_files[local_rank]) if local_rank in error_files else ""

    if not deaths and told is not None:
        deaths = [told]
    found = first_to_fail(deaths, message_of)
    if found is None:
        return 1
    death, message = found
    if death.signal == signal.SIGBUS:
        message = ": ".join([message, *_damaged_data(trainer_arguments)])
    failure = Failure(
        rank=node.global_rank(death.local_rank),
        node=node.node_name,
        local_rank=death.local_rank,
        exit_code=death.exit_code,
        signal=death.signal,
        failed_at=death.at,
        message=message,
        error_file=str(error_files[death.local_rank]) if death.local_rank in error_files else "",
    )
    try:
        place = (folder or HeldFolder(node.attempt_folder)).place()
        write_atomically(place / failure_file(node.node_rank), json_file_text(failure))
    except OSError as unwritten:
        name = failure_file(node.node_rank)
        complain(f"trainer.launch: cannot write {node.attempt_folder / name}: {unwritten.strerror}")
    if death.exit_code == REFUSED_STATUS:
        return REFUSED_STATUS  # the rank itself has said why
    where = f"rank {node.global_rank(death.local_rank)} (local rank {death.local_rank} on {node.node_name})"
    complain(f"{where} failed: {message}")
    return death.exit_code if death.exit_code else 128 + (death.signal or 1)


def _all_seen(deaths: list[Death], told: Death | None) -> list[Death]:
    """Return the deaths with a known end; for one that the agent reaped, by what it has `told`."""
    filled = [
        replace(told, at=one.at) if told and not one.is_seen and one.local_rank == told.local_rank else one
        for one in deaths
    ]
    return [one for one in filled if one.is_seen]


def _death_known_to_the_agent(error: Any) -> Death:
    _, failure = error.get_first_failure()
    code = failure.exitcode
    now = datetime.now().astimezone()
    return Death(failure.local_rank, now, code if code >= 0 else None, -code if code < 0 else None)


def _damaged_data(trainer_arguments: Sequence[str]) -> list[str]:
    """Return a line for the first pair of data files that does not fit together, none if all fit."""
    try:
        return data_sources.damaged_pairs(given(trainer_arguments))[:1]
    except (OptionsError, OSError):
        return []
