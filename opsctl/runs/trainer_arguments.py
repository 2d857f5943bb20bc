"""The trainer's command line and layout, as a run file asks for them."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.errors import RunFileError
from opsctl.runs.load import LoadedRun
from opsctl.runs.options import arguments_of


@dataclass(frozen=True)
class Layout:
    """How the ranks are divided: world_size = tensor * pipeline * data."""

    world_size: int
    tensor: int
    pipeline: int
    data: int


def trainer_arguments(expanded: LoadedRun) -> list[str]:
    """The arguments of `python -m trainer.pretrain_gpt` for an expanded run, without what only a job knows (exit duration, stop request).

    A later argument of the same name wins, so a job may append its own.
    """
    file, paths = expanded.file, expanded.paths
    return [
        *arguments_of(file.trainer),
        *arguments_of(file.data),
        *arguments_of(file.checkpoints),
        *("--save", str(paths.checkpoints)),
        *("--load", str(paths.checkpoints)),
        *("--tensorboard-dir", str(paths.tensorboard)),
        *("--kill-switch-path", str(paths.kill_switch)),
    ]


def layout_of(loaded: LoadedRun, nodes: int | None = None) -> Layout:
    """The layout on `nodes` nodes (default: the run file's). Raises RunFileError when the ranks do not divide by it."""
    slurm, trainer = loaded.file.slurm, loaded.file.trainer
    used = slurm.nodes if nodes is None else nodes
    tensor = int(trainer.get("tensor_model_parallel_size", 1))
    pipeline = int(trainer.get("pipeline_model_parallel_size", 1))
    world_size = used * slurm.gpus_per_node
    if tensor < 1 or pipeline < 1 or world_size % (tensor * pipeline):
        raise RunFileError(
            f"{loaded.path}: {used} nodes x {slurm.gpus_per_node} GPUs = {world_size} ranks do not divide by tensor x pipeline = {tensor} x {pipeline}; "
            f"change [slurm] nodes or [trainer] tensor_model_parallel_size and pipeline_model_parallel_size"
        )
    return Layout(world_size=world_size, tensor=tensor, pipeline=pipeline, data=world_size // (tensor * pipeline))
