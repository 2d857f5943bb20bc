"""`opsctl job`: what the batch script calls inside an allocation."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click


@click.group("job", hidden=True)
def command() -> None:
    """Run inside an allocation; the batch script calls this command."""


@command.command("run")
@click.option("--output-folder", type=click.Path(path_type=Path), required=True, help="The run's output folder.")
@click.option("--submitted-at", required=True, metavar="TIME", help="When the chain was submitted, ISO 8601 with zone.")
@click.option("--publish", default="group", metavar="group|owner", help="Whose revisions count.")
@click.option("--spare", type=click.IntRange(min=0), default=0, help="Nodes of the job that it need not train on.")
@click.argument("arguments", nargs=-1, metavar="[-- TRAINER ARGUMENTS]")
def run(output_folder: Path, submitted_at: str, publish: str, spare: int, arguments: tuple[str, ...]) -> int:
    """Train with the newest revision until the end, the time limit, a signal or the kill switch."""
    import shlex

    from opsctl.core.errors import OpsctlError
    from opsctl.core.files.trusted import at_work_in
    from opsctl.jobs.runner.batch import run_job
    from opsctl.run.config.paths import RunPaths
    from opsctl.run.config.schema import PUBLISHERS
    from opsctl.slurm.cluster import Cluster

    try:
        since = datetime.fromisoformat(submitted_at)
    except ValueError:
        raise click.UsageError(f"--submitted-at {submitted_at!r} is not an ISO 8601 time") from None
    if since.tzinfo is None:
        raise click.UsageError(f"--submitted-at {submitted_at!r} has no time zone")
    if publish not in PUBLISHERS:
        raise click.UsageError(f"--publish {publish!r} is not {' or '.join(PUBLISHERS)}")
    paths = RunPaths(output_folder.absolute())
    if not output_folder.is_dir():
        raise OpsctlError(
            f"no folder {paths.output}: where the run was moved, ln -s NEW {shlex.quote(str(paths.output))} brings its "
            "tasks there, or opsctl revise --resubmit replaces them"
        )
    # The batch script has set up what its submitter meant; a record that others can write is no word on it.
    with at_work_in(paths.output):
        return run_job(paths, Cluster(), since, arguments, only_owners=publish == "owner", spare=spare)
