"""`opsctl evaluate`: run lm-eval on checkpoints, with at most one job for each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from opsctl.cli.export import NEEDED
from opsctl.cli.long_command import LongCommand, job_umask, refuse_job_in_a_job
from opsctl.cli.selection import all_runs_option, each_run, json_option, run_argument
from opsctl.cli.trainer_program import run_trainer_program
from opsctl.core.errors import OpsctlError
from opsctl.core.output import message, print_json, show, show_text
from opsctl.jobs.background.records import BackgroundCommand, command_records
from opsctl.jobs.background.submission import new_command, script_of
from opsctl.jobs.evaluation.execute import Busy, Evaluation, own_job_id
from opsctl.jobs.evaluation.harness import Harness
from opsctl.jobs.evaluation.jobs import AskedEvaluation, ask_for, sbatch_options
from opsctl.jobs.evaluation.records import Chosen, choose
from opsctl.jobs.evaluation.results import EvaluatedCheckpoint
from opsctl.jobs.evaluation.settings import Settings, refuse_strangers_program, settings_of
from opsctl.run.config.profile import jobs_table
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.run_view import RunView, view
from opsctl.slurm.backends import client_for
from trainer.formats.checkpoint.manifest import tag_of


class _OneJobForEach(LongCommand):
    """With --job there is a job for each checkpoint, and none where one is under way."""

    def send(self, ctx: click.Context, given: dict[str, Any]) -> Any:
        """Ask Slurm for them."""
        return _ask(ctx, given)


@click.command("evaluate", cls=_OneJobForEach, internet=False)
@run_argument
@all_runs_option
@click.option(
    "--step", type=click.IntRange(min=0), metavar="N", help="Evaluate this checkpoint, independent of the schedule."
)
@click.option("--again", is_flag=True, help="Re-run completed evaluations.")
@click.option("--dry-run", is_flag=True, help="Print what would be evaluated; start nothing.")
@json_option(
    evaluated="list[opsctl.jobs.evaluation.results.EvaluatedCheckpoint]",
    asked=("list[opsctl.jobs.evaluation.jobs.AskedEvaluation]", "with `--job`"),
)
@click.pass_context
def command(
    ctx: click.Context,
    run: str | None,
    all_runs: bool,
    step: int | None,
    again: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run lm-eval on the checkpoints that [evaluation] selects, the oldest first.

    Exports each checkpoint, runs the tasks in lm-eval's own Python, and deletes the export. Results are in
    logs/evaluation, in TensorBoard and in status. Completed evaluations are not repeated, and a checkpoint that failed
    three times needs --step. --all-runs selects your runs with an [evaluation].

    Exits 1 if a task failed or is missing.
    """
    done: list[EvaluatedCheckpoint] = []
    is_well = True
    for seen, settings in _runs(run, all_runs, step, again):
        try:
            found, went_well = _evaluate_run(seen, settings, step, again, dry_run)
        except OpsctlError as error:
            if not all_runs:
                raise
            found, went_well = [], False
            message(f"{seen.table.name}: {error}")
        done += found
        is_well &= went_well
    if as_json:
        print_json("evaluated", done)
    ctx.exit(0 if is_well else 1)


def _runs(chosen: str | None, all_runs: bool, step: int | None, again: bool) -> list[tuple[RunView, Settings]]:
    """Return the chosen runs, each with the settings of its evaluation."""
    if all_runs and (chosen or step is not None or again):
        raise click.UsageError("--all-runs, or one run with --step and --again: give one of them")
    found = []
    for seen in [seen for _, seen in each_run(lambda run: run.revision is not None)] if all_runs else [view(chosen)]:
        try:
            settings = settings_of(seen)
        except OpsctlError as error:
            if not all_runs:
                raise
            message(f"{seen.table.name}: left alone: {error}")
            continue
        if settings is not None and settings.tasks:
            found.append((seen, settings))
        elif not all_runs:
            raise OpsctlError(f"{seen.table.name} has no [evaluation] tasks: write them (docs/evaluation.md)")
        for warning in settings.warnings if settings else ():
            message(f"{seen.table.name}: warning: {warning}")
    return found


def _chosen(seen: RunView, settings: Settings, step: int | None, again: bool) -> Chosen:
    """Return what is due of one run, and print what is not."""
    chosen = choose(seen.paths, settings.table, step, again)
    for iteration, why in chosen.left:
        message(f"{seen.table.name}: {tag_of(iteration)} is left: {why}")
    for task in settings.tasks:
        if chosen.due and task.note:
            message(f"{seen.table.name}: {task.asked} is {task.name} in lm-eval: {task.note}")
    return chosen


def _evaluate_run(
    seen: RunView, settings: Settings, step: int | None, again: bool, dry_run: bool
) -> tuple[list[EvaluatedCheckpoint], bool]:
    """Evaluate the checkpoints of one run; return the results, and whether all succeeded."""
    name = seen.table.name
    evaluation = Evaluation(
        name,
        seen.paths,
        settings,
        Harness(settings),
        partial(run_trainer_program, needed=NEEDED, to_stderr=True),
        lambda line: message(f"{name}: {line}"),
        own_job_id(),
    )
    chosen = _chosen(seen, settings, step, again)
    states = [(iteration, "there", detail) for iteration, detail in chosen.done]
    states += [(due.iteration, "would evaluate", "") for due in chosen.due] if dry_run else []
    done = [EvaluatedCheckpoint(run=name, iteration=one, state=state, detail=why) for one, state, why in states]
    is_well = dry_run or not any(detail for _, detail in chosen.done)
    if chosen.due and not dry_run:
        refuse_strangers_program(seen, settings)
    for due in () if dry_run else chosen.due:
        try:
            found = evaluation.run(due, again)
        except Busy as busy:
            found = EvaluatedCheckpoint(run=name, iteration=due.iteration, state="busy", detail=str(busy))
        except OpsctlError as error:
            if step is not None:
                raise
            is_well = False
            message(f"{name}: {tag_of(due.iteration)}: {error}")
            continue
        is_well &= not found.detail or found.state == "busy"
        done.append(found)
    for one in done:
        message(f"{name}: {tag_of(one.iteration)}: {one.state}{f': {one.detail}' if one.detail else ''}")
    _show(done)
    return done, is_well


def _show(done: Sequence[EvaluatedCheckpoint]) -> None:

    context = click.get_current_context()
    if context.params.get("as_json"):
        return
    for one in done:
        for task in one.tasks:
            for of, metrics in task.metrics.items():
                said = "  ".join(f"{key} {value:.4f}" for key, value in metrics.items() if "stderr" not in key)
                show(f"{one.iteration}  {of}  {said}")


def _ask(ctx: click.Context, given: dict[str, Any]) -> None:
    """Submit a job for each checkpoint that is due."""
    refuse_job_in_a_job()
    params = ctx.params
    asked: list[AskedEvaluation] = []
    is_well = True
    for seen, settings in _runs(params["run"], params["all_runs"], params["step"], params["again"]):
        try:
            asked += _ask_run(seen, settings, given, params, command_records())
        except OpsctlError as error:
            if not params["all_runs"]:
                raise
            is_well = False
            message(f"{seen.table.name}: {error}")
    for one in asked:
        what = f"job {one.job_id}, {one.errand}" if one.errand else f"no job: {one.why_not}"
        message(f"{one.run}: global_step{one.iteration}: {what}")
    if params["as_json"]:
        print_json("asked", asked)
    else:
        for one in asked:
            if one.job_id:
                show(str(one.job_id))
    ctx.exit(0 if is_well else 1)


def _ask_run(
    seen: RunView, settings: Settings, given: dict[str, Any], params: dict[str, Any], place: Any
) -> list[AskedEvaluation]:

    if seen.loaded is None:
        raise OpsctlError(f"{seen.problem}: a job needs the run file")
    run_file, cluster = seen.loaded.path, choose_cluster(None, seen.paths)
    options = {**sbatch_options(settings.table), **{key: str(one) for key, one in given.items() if one is not None}}

    def make(iteration: int) -> BackgroundCommand:
        words = ("evaluate", str(run_file), "--step", str(iteration), *(["--again"] * params["again"]))
        umask, table = job_umask(seen.table.group), jobs_table()
        return new_command(
            words,
            str(run_file.parent),
            umask,
            cluster,
            table,
            options,
            goes_on=True,
            internet=False,
            run=seen.table.name,
        )

    asked = []
    for due in _chosen(seen, settings, params["step"], params["again"]).due:
        if params["dry_run"]:
            show_text(script_of(place, make(due.iteration)))
            continue
        client = client_for(cluster)
        asked.append(
            ask_for(seen.paths, seen.table.name, due, lambda n=due.iteration: make(n), place, client, params["again"])  # type: ignore[misc]
        )
    return asked
