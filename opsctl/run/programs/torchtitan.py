"""torchtitan: `step-N` folders of torch's distributed checkpoint. Its log lines are parsed by `run.logs`."""

from __future__ import annotations

from opsctl.run.programs.kind import Kind, by_itself, no_progress, numbered_folder
from opsctl.run.programs.saved_files import distributed_problem

KIND = Kind(
    name="torchtitan",
    launch="torchrun",
    saves_on=None,
    checkpoints="*/checkpoint/step-*",
    progress=no_progress,
    judge=numbered_folder(r"step-(\d{1,18})", lambda folder, _: distributed_problem(folder)),
    resume=by_itself,
    lacks=("It does not save when it is stopped: the work since the last checkpoint is lost at each stop.",),
)
