"""torchtitan: `step-N` folders of torch's distributed checkpoint. Its log lines are parsed by `run.logs`."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.run.programs.kind import CommandLine, Kind, by_itself, no_progress, numbered_folder, options_in
from opsctl.run.programs.saved_files import distributed_problem


def _is_its(words: Sequence[str]) -> bool:
    return (
        words[0] == "torchtitan.train" or "torchtitan" in words[0].split("/") or "job.config_file" in options_in(words)
    )


KIND = Kind(
    name="torchtitan",
    launch="torchrun",
    saves_on=None,
    checkpoints="*/checkpoint/step-*",
    progress=no_progress,
    judge=numbered_folder(r"step-(\d{1,18})", lambda folder, _: distributed_problem(folder)),
    resume=by_itself,
    takes_torn=True,  # it looks for .metadata only
    command_line=CommandLine(
        _is_its, output="dump_folder", saves="checkpoint/step-*", has_default=True, steps="training.steps"
    ),
)
