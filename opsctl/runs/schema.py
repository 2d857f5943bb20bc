"""The run file's tables as types. What is not here is refused by name when a run file is loaded."""

from __future__ import annotations

from typing import Any

import msgspec

#: Who decides what queued tasks train: every member of `[run] group`, or only whose run it is.
PUBLISHERS = ("group", "owner")


class RunTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[run]`."""

    name: str
    output: str = "output"  # relative to the run file's folder
    environment: str | None = None  # script sourced on every node before the trainer starts
    group: str | None = None  # Unix group that shares the run
    publish: str = "group"  # whose revisions the run's tasks take: a PUBLISHERS
    team: str = "the team"  # whom an ALERT line names


class SlurmTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[slurm]: what sbatch is asked for. Names are Slurm's; durations are Slurm's."""

    nodes: int
    gpus_per_node: int  # also the number of ranks per node
    time: str
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    gpu_type: str | None = None
    cpus_per_task: int | None = None
    exclude: str | None = None
    nice: int | None = None
    exit_margin: str = "10:00"  # the trainer saves and leaves this long before the time limit
    extra: tuple[str, ...] = ()  # further `#SBATCH` options, e.g. "--hint=nomultithread"


class ArrayTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[array]`."""

    tasks: str = "1-10%1"


class ExpectTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[expect]: what the plan should reckon with until the training log has measured it."""

    seconds_per_iteration: float | None = None
    evaluation_seconds: float | None = None
    save_seconds: float | None = None
    tflops: float | None = None  # hardware TFLOP/s per GPU


class Reckoning(ExpectTable, frozen=True):
    """`[expect]`, with what the training log has measured in its place.

    A duration that is the median of its newest `evaluations` or `saves` in the log has its longest beside it.
    """

    evaluations: int = 0  # 0: as the run file expects it
    longest_evaluation_seconds: float | None = None
    saves: int = 0
    longest_save_seconds: float | None = None


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole run file.

    `trainer`, `data` and `checkpoints` hold the trainer's options with `_` for `-`; which option belongs in which table
    is `trainer.recipe.options.Option.table`.
    """

    run: RunTable
    slurm: SlurmTable
    array: ArrayTable = ArrayTable()
    trainer: dict[str, Any] = {}
    data: dict[str, Any] = {}
    checkpoints: dict[str, Any] = {}
    expect: ExpectTable = ExpectTable()
    env: dict[str, str] = {}
