"""The trainer's command line, as a run file asks for it."""

from __future__ import annotations

from opsctl.runs.paths import RunPaths
from opsctl.runs.schema import RunFile
from trainer.recipe.options import to_arguments

#: What opsctl sets for a run or for each of its jobs: no chain keeps its checkpoints or its kill switch elsewhere.
NOT_A_CHAINS = frozenset(
    {"save", "load", "tensorboard_dir", "kill_switch_path", "stop_request_path", "exit_report_path"}
)


def trainer_arguments(file: RunFile, paths: RunPaths) -> list[str]:
    """The arguments of `python -m trainer.pretrain_gpt` for an expanded run file.

    What only a job knows (exit duration, stop request) is not among them; a later argument of the same name wins.
    """
    return [
        *to_arguments(file.trainer),
        *to_arguments(file.data),
        *to_arguments(file.checkpoints),
        *to_arguments({"save": str(paths.checkpoints), "load": str(paths.checkpoints)}),
        *to_arguments({"tensorboard_dir": str(paths.tensorboard), "kill_switch_path": str(paths.kill_switch)}),
    ]
