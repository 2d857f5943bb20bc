"""What opsctl sets itself: files, folders and limits of a job."""

from __future__ import annotations

from trainer.recipe.option_table.row import Option, flag, group, option

OPTIONS: tuple[Option, ...] = group(
    "set by opsctl",
    option("--save", str, None, "Folder that checkpoints are written to."),
    option("--load", str, None, "Folder that the latest checkpoint is read from."),
    option("--tensorboard-dir", str, None, "Folder of the TensorBoard files."),
    option("--log-path", str, None, "Folder for a copy of the arguments."),
    option("--codecarbon-dir", str, None, "Folder of the energy records: measures with codecarbon, offline."),
    option("--carbon-country", str, None, "Where the electricity comes from, three letters: FRA."),
    option("--carbon-region", str, None, "Region of that country, where codecarbon knows its electricity."),
    option(
        "--carbon-intensity-g-per-kwh",
        float,
        None,
        "The electricity's CO2e in place of the country's.",
        unit="g/kWh",
        at_least=0,
    ),
    option("--kill-switch-path", str, None, "When this file exists: save, leave, exit 0."),
    option("--stop-request-path", str, None, "As the kill switch, for this job alone."),
    option("--save-request-path", str, None, "When this file exists: save once and train on."),
    option("--lease-path", str, None, "Lease on the training: checked at the start and before a checkpoint counts."),
    option("--lease-number", int, None, "The number under which this job has taken the lease.", at_least=1),
    option("--exit-report-path", str, None, "File that says why the trainer left and at which iteration."),
    option("--exit-duration-in-mins", float, None, "Save and leave after this long.", unit="minutes", at_least=0),
    option(
        "--exit-margin-in-mins",
        float,
        None,
        "Longest last save, a minute at least; the distributed timeout when not given.",
        unit="minutes",
        at_least=0,
    ),
    flag("--deepspeed", "Train through DeepSpeed.", notice="training is always through DeepSpeed"),
    option("--deepspeed-config", str, None, "A DeepSpeed JSON file that adds to what follows from the options."),
    option(
        "--local-rank",
        int,
        None,
        "Older launchers' rank on the node; LOCAL_RANK counts.",
        notice="LOCAL_RANK says the local rank",
    ),
    table="opsctl",
)
