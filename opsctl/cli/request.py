"""`opsctl request`: have the owner's job do what Slurm allows only its owner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from opsctl.cli.selection import all_runs_option, cluster_option, json_option, run_argument, run_option
from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.output import message, print_json, printable, show_lines
from opsctl.core.timestamps import iso
from opsctl.jobs.control.carry_out import carry_out as carry_out_run
from opsctl.jobs.control.requests import Meant, RequestOptions, prepare, send, wait_for_answer
from opsctl.run.config.locate import locate_run_file
from opsctl.run.state import requests
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.register import all_runs, may_act_for, paths_of
from opsctl.run.state.requests import Action, Audited, PrintedRequest
from opsctl.run.state.run_view import RunView, glance
from opsctl.slurm.durations import DURATION_RULE, parse_duration_s

#: How long a command waits for the job's word: it looks every second, and most is done in a few.
WORD_WAIT_S = 15.0


@click.group()
def command() -> None:
    """Ask the owner's job to save, stop, requeue or change the chain.

    A request is a file. The Unix owner of the file is the member who makes the request. The running job checks every
    second, carries out requests of members of the run's group, and records the results. If the owner has no running
    job, it waits for the next tick of the owner's opsctl cron, or until the owner types opsctl request carry-out.
    """


def _request(action: str, help_: str, *own: Callable[[Any], Any], of_a_job: bool = False) -> None:
    """Add the command that asks for `action`. own: its options beside those that every request has."""
    options = [
        click.option("--why", default="", metavar="TEXT", help="The reason, for the record and the log."),
        click.option("--no-wait", is_flag=True, help=f"Do not wait {WORD_WAIT_S:g} s for the result."),
        click.option("--dry-run", is_flag=True, help="Print the request; change nothing."),
        cluster_option,
        json_option(request="opsctl.run.state.requests.PrintedRequest"),
        *own,
    ]
    if of_a_job:
        options.insert(
            0, click.option("--job", metavar="JOB", help="Id of the job as squeue shows it [default: the running one].")
        )
    options.insert(0, run_option if action == "extend-chain" else run_argument)

    def ask(**given: Any) -> int:
        return _ask(action, given)

    for option in reversed(options):
        ask = option(ask)
    command.command(action, help=help_)(ask)


_within = click.option(
    "--within",
    metavar="TIME",
    help="Kill the training if it has not begun to exit within this Slurm duration "
    "[default: silent_most of [watch]; without it, ten iterations plus 10 minutes].",
)
_queued_too = click.option("--queued-too", is_flag=True, help="Also cancel the owner's queued jobs.")
_tasks = click.argument("tasks", type=int, required=False, metavar="[N]")
_STOP = """Make one job save and exit; queued jobs stay queued.

If --job names a queued job, that job is cancelled. To cancel all queued jobs too, use --queued-too or the kill
switch."""
_EXTEND = """Queue one more chain of N tasks behind the last chain.

The default N is that of the last opsctl submit. The new jobs belong to the owner and use the newest revision."""
_request("save", "Save a checkpoint now, and continue training.", of_a_job=True)
_request("stop", _STOP, _within, _queued_too, of_a_job=True)
_REQUEUE = "Make one job save, exit and requeue, to get other nodes."
_request("requeue", _REQUEUE, _within, of_a_job=True)
_request("stacks", "Print the Python stacks of all ranks.", of_a_job=True)
_request("cancel-queued", "Cancel the owner's queued jobs; running jobs continue.")
_request("hold-queued", "Hold the owner's queued jobs until they are released.")
_request("release-queued", "Release the owner's held jobs.")
_request("extend-chain", _EXTEND, _tasks)


@command.command("list")
@run_argument
@json_option(requests="list[opsctl.run.state.requests.PrintedRequest]")
def list_(run: str | None, as_json: bool) -> None:
    """List requests, who made them, and their results."""
    paths = glance(run).paths
    found = requests.printed(paths)
    if as_json:
        print_json("requests", found)
    elif found:
        show_lines(map(_line, found))
    else:
        message("there are no requests")


@command.command("carry-out")
@run_argument
@all_runs_option
@click.option("--dry-run", is_flag=True, help="Print the waiting requests; change nothing.")
@cluster_option
@json_option(
    carried_out="list[opsctl.run.state.requests.Audited]",
    waiting=("list[opsctl.run.state.requests.PrintedRequest]", "with `--dry-run`"),
)
def carry_out(run: str | None, all_runs: bool, dry_run: bool, cluster: str | None, as_json: bool) -> int:
    """Carry out requests to your jobs. The scheduler calls this.

    Carries out the requests that your running jobs do not handle. Exits 1 if a request could not be carried out or
    checked.
    """
    done: list[Audited] = []
    waits: list[PrintedRequest] = []
    failed = False
    for run_file in _own_runs() if all_runs else [str(locate_run_file(run))]:
        try:
            if dry_run:
                waits += _waiting(run_file)
            else:
                done += _carried_out(run_file, cluster)
        except (OpsctlError, OSError) as error:
            if not all_runs:
                raise
            failed = True
            message(f"opsctl: {run_file}: {error}")
    if dry_run and as_json:
        print_json("waiting", waits)
    elif dry_run:
        show_lines(map(_line, waits))
    elif as_json:
        print_json("carried_out", done)
    else:
        show_lines(f"{one.action} of {one.asked_by}: {one.outcome}: {one.words}" for one in done)
    return 1 if failed or any(one.outcome == "failed" for one in done) else 0


def _own_runs() -> list[str]:
    """Return the run files of all runs that this account acts for."""
    found = []
    for run in all_runs():
        try:
            if may_act_for(run, paths_of(run)):
                found.append(run.run_file)
        except OpsctlError as error:
            message(f"opsctl: {run.name}: {error}")
    return found


def _waiting(run_file: str) -> list[PrintedRequest]:
    """Return the requests of a run that have no answer yet."""
    return [one for one in requests.printed(glance(run_file).paths) if one.state != "answered"]


def _carried_out(run_file: str, cluster: str | None) -> list[Audited]:
    paths = glance(run_file).paths
    return carry_out_run(paths, Path(run_file).absolute().parent, choose_cluster(cluster, paths))


def _ask(action: str, given: dict[str, Any]) -> int:
    """Make a request, wait for its answer and print it; return the exit code."""
    run_file = locate_run_file(given["run"])
    run = glance(str(run_file))
    cluster = choose_cluster(given["cluster"], run.paths)
    meant = prepare(run.paths, run.table.name, _options(run), cluster, _wish(action, given))
    job, owner = meant.request.job, meant.request.owner
    what = f"{action} of {owner}'s job {job}" if job else f"{action} of {owner}'s"
    if given["dry_run"]:
        message(f"would ask for {what}; {_who_does_it(meant)}")
        return 0
    request_id = send(run.paths, meant.request)
    message(f"asked for {what}: request {request_id}")
    return _told(run, str(run_file), meant, request_id, given)


def _wish(action: str, given: dict[str, Any]) -> RequestOptions:
    within = given.get("within")
    try:
        within_s = None if within is None else parse_duration_s(within)
    except ValueError:
        raise click.UsageError(f"--within {within}: not {DURATION_RULE}") from None
    return RequestOptions(
        action=Action(action),
        why=given["why"],
        job=given.get("job"),
        tasks=given.get("tasks"),
        within_s=within_s,
        queued_too=bool(given.get("queued_too")),
    )


def _options(run: RunView) -> Any:
    """Return the published trainer options; None where they are unknown."""
    try:
        return run.options
    except OpsctlError:
        return None


def _told(run: RunView, run_file: str, meant: Meant, request_id: str, given: dict[str, Any]) -> int:
    """Wait for the answer and print it; return the exit code."""
    answer: Audited | None = None
    if not given["no_wait"]:
        if not meant.answers and meant.request.owner == account_name():
            _carried_out(run_file, given["cluster"])
        wait_s = WORD_WAIT_S if meant.answers else 0.0
        answer = wait_for_answer(run.paths, request_id, wait_s)
    if answer is not None:
        message(f"{answer.outcome}: {answer.words}")
    else:
        message(f"no answer yet: {_who_does_it(meant)}; opsctl request list shows the result")
    if given["as_json"]:
        print_json("request", next((one for one in requests.printed(run.paths) if one.id == request_id), None))
    return 0 if answer is None or answer.outcome == requests.Outcome.DONE else 1


def _who_does_it(meant: Meant) -> str:
    owner = meant.request.owner
    if meant.answers:
        return f"job {meant.answers} of {owner} does it"
    return (
        f"nothing of {owner}'s runs, so it is done when {owner}'s cron ticks, or {owner} types opsctl request carry-out"
    )


def _line(one: PrintedRequest) -> str:
    what = f"{one.action or '?'}{f' {one.tasks}' if one.tasks else ''}{f' of job {one.job}' if one.job else ''}"
    why = f" ({one.why})" if one.why else ""
    came = f"{one.outcome}: {one.words}; by {one.by}" if one.state == "answered" else one.state
    return printable(f"{iso(one.asked_at) or '?'}  {one.id}  {one.asked_by} asked for {what}{why}: {came}")
