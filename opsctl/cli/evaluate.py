"""`opsctl evaluate`: run lm-eval on checkpoints, with at most one job for each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from opsctl.cli.export import NEEDED
from opsctl.cli.long_command import LongCommand, refuse_job_in_a_job
from opsctl.cli.selection import all_runs_option, for_runs, json_option, run_argument
from opsctl.cli.trainer_program import run_trainer_program
from opsctl.core.output import message, print_json, show, show_text
from opsctl.jobs.background.records import command_records
from opsctl.jobs.background.submission import script_of
from opsctl.jobs.evaluation.execute import EvaluatedRun, evaluate_run
from opsctl.jobs.evaluation.jobs import AskedEvaluation, ask_for, commands_due
from opsctl.jobs.evaluation.results import EvaluatedCheckpoint
from opsctl.jobs.evaluation.settings import is_evaluated
from opsctl.run.state.run_view import RunView
from opsctl.slurm.backends import client_for


class _OneJobForEach(LongCommand):
    """With --job there is a job for each checkpoint, and none where one is under way."""

    def send(self, ctx: click.Context, given: dict[str, Any]) -> None:
        """Submit a job for each checkpoint that is due."""
        refuse_job_in_a_job()
        params, place = ctx.params, command_records()
        run, all_runs, step, again = (params[name] for name in ("run", "all_runs", "step", "again"))
        _refuse_all_with_one(all_runs, step, again)

        def act(seen: RunView) -> list[AskedEvaluation]:
            asked, name = [], seen.table.name
            for due, command in commands_due(seen, given, step, again, _reporter(seen)):
                if params["dry_run"]:
                    show_text(script_of(place, command))
                else:
                    client = client_for(command.cluster)
                    asked.append(ask_for(seen.paths, name, due, command, place, client, again))
            return asked

        asked, is_well = for_runs(run, all_runs, is_evaluated, act)
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
    _refuse_all_with_one(all_runs, step, again)
    trainer = partial(run_trainer_program, needed=NEEDED, to_stderr=True)

    def act(seen: RunView) -> list[EvaluatedRun]:
        found = evaluate_run(seen, step, again, dry_run, trainer, _reporter(seen))
        if not as_json:
            _show(found.results)
        return [found]

    done, is_well = for_runs(run, all_runs, is_evaluated, act)
    if as_json:
        print_json("evaluated", [result for one in done for result in one.results])
    ctx.exit(0 if is_well and all(one.is_well for one in done) else 1)


def _refuse_all_with_one(all_runs: bool, step: int | None, again: bool) -> None:
    if all_runs and (step is not None or again):
        raise click.UsageError("--all-runs cannot be combined with --step or --again")


def _reporter(run: RunView) -> Callable[[str], None]:
    return lambda line: message(f"{run.table.name}: {line}")


def _show(results: list[EvaluatedCheckpoint]) -> None:
    for one in results:
        for task in one.tasks:
            for name, metrics in task.metrics.items():
                values = "  ".join(f"{key} {value:.4f}" for key, value in metrics.items() if "stderr" not in key)
                show(f"{one.iteration}  {name}  {values}")
