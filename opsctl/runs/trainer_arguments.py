"""The trainer's command line and layout, as a run file asks for them."""

from __future__ import annotations

from opsctl.errors import RunFileError
from opsctl.runs.load import LoadedRun
from trainer.recipe.layout import Layout
from trainer.recipe.options import Options, to_arguments

#: What opsctl sets for a run or for each of its jobs: no chain keeps its checkpoints or its kill switch elsewhere.
NOT_A_CHAINS = frozenset(
    {"save", "load", "tensorboard_dir", "kill_switch_path", "stop_request_path", "exit_report_path"}
)


def trainer_arguments(expanded: LoadedRun) -> list[str]:
    """The arguments of `python -m trainer.pretrain_gpt` for an expanded run.

    What only a job knows (exit duration, stop request) is not among them; a later argument of the same name wins.
    """
    file, paths = expanded.file, expanded.paths
    return [
        *to_arguments(file.trainer),
        *to_arguments(file.data),
        *to_arguments(file.checkpoints),
        *to_arguments({"save": str(paths.checkpoints), "load": str(paths.checkpoints)}),
        *to_arguments({"tensorboard_dir": str(paths.tensorboard), "kill_switch_path": str(paths.kill_switch)}),
    ]


def layout_of(loaded: LoadedRun, nodes: int | None = None) -> Layout:
    """The layout on `nodes` nodes (default: the run file's). Raises RunFileError when the ranks do not divide by it."""
    slurm, trainer = loaded.file.slurm, loaded.file.trainer
    used = slurm.nodes if nodes is None else nodes
    try:
        return Layout.of(Options(trainer), used * slurm.gpus_per_node)
    except ValueError as error:
        raise RunFileError(
            f"{loaded.path}: {used} nodes x {slurm.gpus_per_node} GPUs: {error}; change [slurm] nodes, or [trainer] "
            "tensor_model_parallel_size or pipeline_model_parallel_size"
        ) from None
