"""Commands that may take hours: with `--job` the same command line is carried out by a Slurm job.

A command becomes one by `@click.command(cls=LongCommand)`; `goes_on=False` where another start begins again instead of
continuing, `internet=True` where it needs the internet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

_WORDS = "opsctl.words"
#: Options of sbatch: flag -> what it says.
_OF_SBATCH = {
    "--partition": "partition [default: the profile's [jobs]].",
    "--time": "time limit of each job, a Slurm duration.",
    "--account": "Slurm account.",
    "--qos": "QOS of the job.",
    "--cpus": "number of CPUs [default: Slurm's].",
}
#: What a long command prints with `--json` if it is sent as a job.
SENT = ("errand", "opsctl.jobs.background.listing.PrintedCommand", "with `--job`")
#: All that a command gets beside its own options.
JOB_OPTIONS = frozenset(("--job", *_OF_SBATCH))
_METAVARS = {"--partition": "P", "--time": "T", "--account": "A", "--qos": "Q", "--cpus": "N"}
_SBATCH_NAMES = {"cpus": "cpus-per-task"}


class LongCommand(click.Command):
    """Adds `--job` and what goes with it."""

    def __init__(self, *args: Any, goes_on: bool = True, internet: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.goes_on = goes_on
        self.internet = internet
        past = (
            "At the time limit, a new job continues the work"
            if goes_on
            else "No other job continues it after its limit"
        )
        what = f"Run this as a Slurm job. {past}. See opsctl jobs."
        self.params.append(click.Option(["--job"], is_flag=True, help=what, expose_value=False, callback=_kept))
        for flag, help_ in _OF_SBATCH.items():
            name, kind = flag.removeprefix("--"), click.IntRange(min=1) if flag == "--cpus" else None
            self.params.append(
                click.Option(
                    [flag, f"job_{name}"],
                    metavar=_METAVARS[flag],
                    type=kind,
                    help=f"With --job: {help_}",
                    expose_value=False,
                    callback=_kept,
                )
            )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words for the job's command line, and parse."""
        words = ctx.command_path.split()[1:]
        ctx.meta[_WORDS] = (*words, *without_job_options(args, self.params))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """With `--job` it is sent; else it is carried out here."""
        given = {name: ctx.meta.get(f"{_WORDS}.job_{name}") for name in map(_bare, _OF_SBATCH)}
        if ctx.meta.get(f"{_WORDS}.job"):
            return self.send(ctx, {_SBATCH_NAMES.get(name, name): value for name, value in given.items()})
        alone = next((name for name, value in given.items() if value is not None), None)
        if alone is not None:
            raise click.UsageError(f"--{alone} is of the Slurm job: give --job too")
        return super().invoke(ctx)

    def send(self, ctx: click.Context, given: dict[str, Any]) -> Any:
        """Have a Slurm job do it. given: options of sbatch, None where the command line says nothing."""
        return _send(self, ctx, given)


def without_job_options(args: Sequence[str], options: Sequence[click.Parameter]) -> list[str]:
    """`args` less `--job` and what goes with it; a word that is another option's value stays, whatever it is."""
    takes_value = {
        flag
        for option in options
        if isinstance(option, click.Option) and not option.is_flag and option._flag_needs_value is False
        for flag in option.opts
    }
    kept: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        flag, equals, _ = word.partition("=")
        if word == "--":
            return [*kept, word, *rest]
        value = [rest.pop(0)] if word in takes_value and rest else []
        if word != "--job" and not (flag in _OF_SBATCH and (equals or value)):
            kept += [word, *value]
    return kept


def _bare(flag: str) -> str:
    return flag.removeprefix("--")


def _kept(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    ctx.meta[f"{_WORDS}.{parameter.name}"] = value
    return value


def _send(command: LongCommand, ctx: click.Context, given: dict[str, Any]) -> None:
    from pathlib import Path

    from opsctl.core.output import message, print_json, show, show_text
    from opsctl.jobs.background.listing import printed_command
    from opsctl.jobs.background.records import command_records
    from opsctl.jobs.background.submission import Seen, job_umask, new_command, script_of, start
    from opsctl.run.config.profile import jobs_table
    from opsctl.run.state.chosen_cluster import choose_cluster
    from opsctl.slurm.backends import client_for

    refuse_job_in_a_job()
    run, params = _run_of(ctx.params), ctx.params
    sent = new_command(
        ctx.meta[_WORDS],
        str(Path.cwd()),
        job_umask(run.table.group if run else None),
        choose_cluster(params.get("cluster"), run.paths if run else None),
        jobs_table(),
        {name: None if value is None else str(value) for name, value in given.items()},
        goes_on=command.goes_on,
        internet=command.internet,
        run=run.table.name if run else "",
    )
    place = command_records()
    if params.get("dry_run"):
        show_text(script_of(place, sent))
        return
    sent = start(place, client_for(sent.cluster), sent)
    options = dict(sent.options)
    where = f" on {options['partition']}" if "partition" in options else ""
    message(f"{sent.name}: job {sent.last.job_id}{where}, at most {options['time']} each; {sent.folder}")
    message(f"output: {place.output(sent.name)}")
    message(f"next: opsctl jobs logs -f {sent.name}; opsctl jobs; opsctl jobs cancel {sent.name}")
    if params.get("as_json"):
        print_json("errand", printed_command(place, Seen(sent)))
    else:
        show(str(sent.last.job_id))


def _run_of(params: dict[str, Any]) -> Any:
    """Return the run of the command; None for a command that needs none and has none."""
    from opsctl.core.errors import UsageError
    from opsctl.run.state.run_view import glance

    if "run" not in params or params.get("all_runs"):
        return None
    try:
        return glance(params["run"])
    except UsageError:
        if params["run"]:
            raise
        return None


def refuse_job_in_a_job() -> None:
    """Raise click.UsageError inside a job that carries out such a command."""
    from opsctl.run.state.background_progress import command_at_work

    if command_at_work():
        raise click.UsageError("--job inside such a job: it is carried out here, leave --job out")
