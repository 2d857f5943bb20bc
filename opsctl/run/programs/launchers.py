"""The processes that start a program on one node, with their arguments and variables. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NAME = re.compile(r"\{([a-z_]+)\}")
#: Options that `accelerate launch` needs on several nodes, in its names, and the place's field.
_ACCELERATE = {
    "--num_machines": "nodes",
    "--machine_rank": "node_rank",
    "--num_processes": "world_size",
    "--main_process_ip": "master_address",
    "--main_process_port": "master_port",
}


@dataclass(frozen=True)
class Place:
    """A node's place in a program's launch."""

    nodes: int
    node_rank: int  # from 0
    ranks_per_node: int
    master_address: str
    master_port: int
    run_id: str  # the same on all nodes, another one for each attempt
    grace_s: int = 60  # from the stop signal to SIGKILL

    def fields(self) -> dict[str, str]:
        """Return the values that stand for `{name}` in a command."""
        values = {
            "nodes": self.nodes,
            "node_rank": self.node_rank,
            "ranks_per_node": self.ranks_per_node,
            "world_size": self.nodes * self.ranks_per_node,
            "master_address": self.master_address,
            "master_port": self.master_port,
            "run_id": self.run_id,
        }
        return {name: str(value) for name, value in values.items()}


@dataclass(frozen=True)
class Start:
    """A process to start: its words, and its variables in addition to the node's."""

    words: tuple[str, ...]
    environment: Mapping[str, str]


def to_start(command: Sequence[str], launch: str, place: Place) -> list[Start]:
    """Return the processes of a node: one launcher, or with launch "ranks" one process for each rank.

    Options in `command` win over the place's. `{node_rank}` and the other fields are replaced in every word.
    """
    fields = place.fields()
    words = [_NAME.sub(lambda match: fields.get(match[1], match[0]), word) for word in command]
    meeting = {"MASTER_ADDR": place.master_address, "MASTER_PORT": str(place.master_port)}
    if launch == "ranks":
        return [
            Start(tuple(words), meeting | _of_rank(place, local_rank)) for local_rank in range(place.ranks_per_node)
        ]
    if launch == "accelerate":
        return [Start(tuple(_with_options(words, fields)), meeting)]
    return [Start(tuple(words), meeting | _torchrun(place))]


def _of_rank(place: Place, local_rank: int) -> dict[str, str]:
    """Return torchrun's variables of a rank. TORCHELASTIC_RUN_ID keeps Lightning from reading Slurm's variables."""
    return {
        "RANK": str(place.node_rank * place.ranks_per_node + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(place.nodes * place.ranks_per_node),
        "LOCAL_WORLD_SIZE": str(place.ranks_per_node),
        "GROUP_RANK": str(place.node_rank),
        "TORCHELASTIC_RUN_ID": place.run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def _torchrun(place: Place) -> dict[str, str]:
    """Return torchrun's options as its PET_ variables, which lose against options of the command."""
    return {
        "PET_NNODES": str(place.nodes),
        "PET_NODE_RANK": str(place.node_rank),
        "PET_NPROC_PER_NODE": str(place.ranks_per_node),
        "PET_MASTER_ADDR": place.master_address,
        "PET_MASTER_PORT": str(place.master_port),
        "PET_RDZV_ID": place.run_id,
        "PET_SHUTDOWN_TIMEOUT": str(place.grace_s),
        # A rank's exit code can be read until torchrun notices its end, by default after 0.1 s.
        "PET_MONITOR_INTERVAL": "1",
        # A restart within the job shares the launcher's store with the ranks before it, and may hang.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def _with_options(words: Sequence[str], fields: Mapping[str, str]) -> list[str]:
    """Insert the options of `accelerate launch` that the command does not give."""
    at = words.index("launch") + 1 if "launch" in words else 1
    given = {word.partition("=")[0] for word in words}
    added = [text for option, field in _ACCELERATE.items() if option not in given for text in (option, fields[field])]
    return [*words[:at], *added, *words[at:]]
