"""The trainer's command line and layout, as a run file asks for them; and what a command line says."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.errors import RunFileError
from opsctl.runs.load import LoadedRun
from opsctl.runs.options import option
from trainer.recipe.layout import Layout
from trainer.recipe.options import to_arguments


def trainer_arguments(expanded: LoadedRun) -> list[str]:
    """The arguments of `python -m trainer.pretrain_gpt` for an expanded run.

    What only a job knows (exit duration, stop request) is not among them; a later argument of the same name wins.
    """
    file, paths = expanded.file, expanded.paths
    return [
        *to_arguments(file.trainer),
        *to_arguments(file.data),
        *to_arguments(file.checkpoints),
        *("--save", str(paths.checkpoints)),
        *("--load", str(paths.checkpoints)),
        *("--tensorboard-dir", str(paths.tensorboard)),
        *("--kill-switch-path", str(paths.kill_switch)),
    ]


def layout_of(loaded: LoadedRun, nodes: int | None = None) -> Layout:
    """The layout on `nodes` nodes (default: the run file's). Raises RunFileError when the ranks do not divide by it."""
    slurm, trainer = loaded.file.slurm, loaded.file.trainer
    used = slurm.nodes if nodes is None else nodes
    try:
        return Layout.of(
            used * slurm.gpus_per_node,
            tensor=option(trainer, "tensor_model_parallel_size"),
            pipeline=option(trainer, "pipeline_model_parallel_size"),
        )
    except ValueError as error:
        raise RunFileError(
            f"{loaded.path}: {used} nodes x {slurm.gpus_per_node} GPUs: {error}; change [slurm] nodes, or [trainer] "
            "tensor_model_parallel_size or pipeline_model_parallel_size"
        ) from None


def option_values(arguments: Sequence[str], name: str) -> list[str]:
    """Every value given to the option `name`, as `--name VALUE` or `--name=VALUE`, in order."""
    values = []
    for index, argument in enumerate(arguments):
        if argument == name and index + 1 < len(arguments):
            values.append(arguments[index + 1])
        elif argument.startswith(name + "="):
            values.append(argument.partition("=")[2])
    return values


def last_number(arguments: Sequence[str], name: str) -> int | None:
    """The last value given to the option `name`, which is the one that counts; None without one or for no number."""
    values = option_values(arguments, name)
    try:
        return int(values[-1]) if values else None
    except ValueError:
        return None
