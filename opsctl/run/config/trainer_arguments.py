"""The trainer's command line, as a run file asks for it."""

from __future__ import annotations

from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import CarbonTable, RunFile
from trainer.recipe.options import to_arguments

#: What is the run's or the job's to set: no chain keeps its checkpoints, its kill switch or its reports elsewhere. From
#: where it loads, and where its curves go, one chain may say.
NOT_A_CHAINS = frozenset(
    {
        *("save", "kill_switch_path", "stop_request_path", "save_request_path", "exit_report_path"),
        *("lease_path", "lease_number"),
    }
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
        *(_measured(file.carbon, paths) if file.carbon.measure else ()),
    ]


def _measured(carbon: CarbonTable, paths: RunPaths) -> list[str]:
    where = {"carbon_country": carbon.country, "carbon_region": carbon.region}
    grams = {"carbon_intensity_g_per_kwh": carbon.intensity_g_per_kwh}
    return to_arguments({"codecarbon_dir": str(paths.codecarbon), **where, **grams})
