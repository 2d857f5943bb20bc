"""`opsctl triage --stacks`: where every rank of a live job is, and which of them the others wait for."""

from __future__ import annotations

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import read_text
from opsctl.core.output import message, print_json, printable, show_lines
from opsctl.diagnosis.hangs.summary import printed_stacks, read_written, screen
from opsctl.jobs.control.requests import Meant, RequestOptions, prepare, send, wait_for_answer
from opsctl.jobs.runner.stacks import Taken, command, take_stacks
from opsctl.run.attempts.events import Attempt, read
from opsctl.run.state.attempt_folder import rank_map
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.requests import Action, Outcome
from opsctl.run.state.run_view import RunView
from opsctl.slurm.cluster import Cluster

#: Seconds for another user's job to answer: it checks every second, and asks each of its nodes.
ANSWER_WAIT_S = 75.0


def show_stacks(
    run: RunView, as_json: bool, *, job: str | None = None, native: bool = False, cluster: str | None = None
) -> int:
    """Print the groups of ranks of the run's live job; 1 where one is odd, 0 where none is.

    One's own job is asked directly, another member's through a request. job: as squeue shows it; None: the one that
    trains. native: frames of compiled code too, of one's own job. Raises OpsctlError.
    """
    try:
        options = run.options
    except OpsctlError:
        options = None
    asked = choose_cluster(cluster, run.paths)
    meant = prepare(run.paths, run.table.name, options, asked, RequestOptions(Action.STACKS, job=job))
    attempt = _attempt(run, meant)
    if meant.request.owner == account_name():
        taken = _own(run, attempt, asked, native)
    else:
        if native:
            message(f"opsctl: {meant.request.owner}'s job prints Python frames only")
        taken = _others(run, meant, attempt)
    if as_json:
        print_json("stacks", printed_stacks(attempt.display_id, taken.groups, taken.ranks, taken.flight))
    else:
        show_lines(map(printable, screen(taken.groups, taken.ranks, taken.flight)))
    return 1 if any(group.is_odd for group in taken.groups) else 0


def _attempt(run: RunView, meant: Meant) -> Attempt:
    """Return the attempt of the chosen job. Raises OpsctlError if it trains nothing yet."""
    found = next((one for one in reversed(read(run.paths)) if one.id == meant.request.attempt), None)
    if found is None:
        raise OpsctlError(f"job {meant.request.job} does not train yet. To see what it waits for: opsctl status")
    return found


def _own(run: RunView, attempt: Attempt, cluster: Cluster, native: bool) -> Taken:
    folder = run.paths.attempt_folder(attempt.job_id)
    words = command(len(attempt.nodes), job_id=attempt.job_id, only_on=attempt.nodes, native=native, flights_in=folder)
    return take_stacks(words, _ranks(run, attempt), cluster.environment())


def _others(run: RunView, meant: Meant, attempt: Attempt) -> Taken:
    """Return the stacks from the job's answer to a request. Raises OpsctlError for any other answer, and for none."""
    request_id = send(run.paths, meant.request)
    answer = wait_for_answer(run.paths, request_id, ANSWER_WAIT_S)
    if answer is None:
        raise OpsctlError(f"job {attempt.display_id} has not answered yet: opsctl request list shows the result")
    if answer.outcome != Outcome.DONE:
        raise OpsctlError(f"{answer.outcome}: {answer.words}")
    path = run.paths.attempt_folder(attempt.job_id) / f"stacks-{request_id}.txt"
    text = read_text(run.paths.output, path)
    if text is None:
        raise OpsctlError(f"{answer.words}; {path} cannot be read")
    return Taken(tuple(read_written(text)), (), _ranks(run, attempt))


def _ranks(run: RunView, attempt: Attempt) -> int:
    """Return the expected number of ranks: as recorded by the launchers, else one per node."""
    return len(rank_map(run.paths.output, run.paths.attempt_folder(attempt.job_id))) or len(attempt.nodes)
