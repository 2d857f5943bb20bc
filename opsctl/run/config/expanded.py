"""A run as its tasks train it: made once from what was read, checked and passed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opsctl.core.errors import RunFileError, UsageError
from opsctl.run.config import values
from opsctl.run.config.load import LoadedRun
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.program import options_of_program
from opsctl.run.config.schema import CarbonTable, RunFile
from trainer.formats.checkpoint.starting import parse_to_start
from trainer.recipe.layout import Layout
from trainer.recipe.options import BY_KEY, Options, OptionsError, given, to_arguments

#: What is the run's or the job's to set: no chain keeps its checkpoints, its kill switch or its reports elsewhere. From
#: where it loads, and where its curves go, one chain may say.
NOT_A_CHAINS = frozenset(
    {
        *("save", "kill_switch_path", "stop_request_path", "save_request_path", "exit_report_path"),
        *("lease_path", "lease_number"),
    }
)


def trainer_arguments(file: RunFile, paths: RunPaths) -> list[str]:
    """Return the trainer's arguments for an expanded run file, without what only a job knows; none for a program."""
    if file.program is not None:
        return []
    return [
        *to_arguments(file.trainer),
        *to_arguments(file.data),
        *to_arguments(file.checkpoints),
        *to_arguments({"save": str(paths.checkpoints), "load": str(paths.checkpoints)}),
        *to_arguments({"tensorboard_dir": str(paths.tensorboard), "kill_switch_path": str(paths.kill_switch)}),
        *(_measured(file.carbon, paths) if file.carbon.measure else ()),
    ]


def _measured(carbon: CarbonTable, paths: RunPaths) -> list[str]:
    where = {"carbon_country": carbon.country, "carbon_region": carbon.region}
    grams = {"carbon_intensity_g_per_kwh": carbon.intensity_g_per_kwh}
    return to_arguments({"codecarbon_dir": str(paths.codecarbon), **where, **grams})


@dataclass(frozen=True)
class ExpandedRun:
    """A run on a number of nodes. Another number, or a chain's own arguments, make another of the same expansion."""

    file: RunFile  # every `${VAR}` replaced, every path absolute; as it is published
    path: Path  # where it was read, absolute
    sha256: str  # of the bytes there
    paths: RunPaths
    nodes: int  # the run file's, or a chain's
    arguments: tuple[str, ...]  # of `python -m trainer.pretrain_gpt`, a chain's own last; of a program only a chain's
    options: Options  # what the trainer makes of them
    layout: Layout

    @classmethod
    def of(cls, loaded: LoadedRun, file: RunFile, nodes: int | None = None) -> ExpandedRun:
        """Return `loaded`, expanded to `file`, on `nodes` nodes (default: the file's). Raises RunFileError."""
        values.check_output(loaded.path, file.run.output)
        paths, used = loaded.paths, file.slurm.nodes if nodes is None else nodes
        arguments = trainer_arguments(file, paths)
        try:
            options, layout = parsed(file, arguments, used * file.slurm.gpus_per_node)
        except OptionsError as error:
            raise RunFileError(f"{loaded.path}: {error}") from None
        return cls(file, loaded.path, loaded.sha256, paths, used, tuple(arguments), options, layout)

    @property
    def folder(self) -> Path:
        """The folder from which relative paths of the run file start."""
        return self.path.parent

    def on(self, nodes: int | None) -> ExpandedRun:
        """Return the same run on `nodes` nodes (None: the run file's). Raises RunFileError if the trainer would refuse
        it.
        """
        used = self.file.slurm.nodes if nodes is None else nodes
        if used == self.nodes:
            return self
        try:
            options, layout = parsed(self.file, self.arguments, used * self.file.slurm.gpus_per_node)
        except OptionsError as error:
            raise RunFileError(f"{self.path}: on {used} nodes: {error}") from None
        return replace(self, nodes=used, options=options, layout=layout)

    def with_arguments(self, one_off: Sequence[str]) -> ExpandedRun:
        """Return the same with a chain's one-off trainer arguments. Raises UsageError for wrong ones."""
        if not one_off:
            return self
        if self.file.program is not None:
            return replace(self, arguments=tuple(one_off))
        arguments = (*self.arguments, *one_off)
        try:
            for key in given(one_off):
                if key in NOT_A_CHAINS:
                    raise UsageError(f"{BY_KEY[key].name} belongs to the run, not to one chain: remove it")
            options, layout = parsed(self.file, arguments, self.layout.world_size)
        except OptionsError as error:
            raise UsageError(f"after --: {error}") from None
        return replace(self, arguments=arguments, options=options, layout=layout)


def parsed(file: RunFile, arguments: Sequence[str], world_size: int) -> tuple[Options, Layout]:
    """Return the options and the layout of a run. Raises OptionsError, also if the ranks do not divide.

    arguments: the trainer's. Another program's are its own, and its ranks count as one data-parallel group.
    """
    if file.program is not None:
        return options_of_program(file.program), Layout(world_size, 1, 1, world_size)
    options = parse_to_start(arguments, world_size)
    return options, Layout.of(options, world_size)
