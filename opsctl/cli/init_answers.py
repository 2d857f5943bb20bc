"""The questions of `opsctl init` for a new run: Slurm's partitions, answers or options, and a layout that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from opsctl.cli.new_run import make_run, say_next
from opsctl.cli.plan import Number
from opsctl.core.errors import OpsctlError, SlurmError, UsageError
from opsctl.core.output import message, printable
from opsctl.run.config.load import load_run_file
from opsctl.run.config.locate import RUN_FILE_NAME
from opsctl.run.init.draft import run_text
from opsctl.run.init.suggestions import GPU_KINDS, TOKENS_PER_PARAMETER, Wanted, gpus_for, is_known_gpu, suggested
from opsctl.run.planning.from_run import expected_days
from opsctl.run.planning.section import billions
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.slurm.client import Deadline
from opsctl.slurm.durations import parse_duration_s
from opsctl.slurm.partitions_offered import Offer, accounts, offers

#: Seconds to wait for Slurm's partitions before the first question.
_SLURM_S = 6.0
_DEMO, _OWN = "demo", "own"
_NUMBER = Number(whole=False)

#: Return the answer to a question: (explanation, prompt, default, check). The check raises click.UsageError.
Ask = Callable[[str, str, Any, Callable[[Any], Any]], Any]


def make_from_answers(folder: Path, run_name: str, cluster: str | None, given: dict[str, Any], asks: bool) -> bool:
    """Make the run from options, and from questions if `asks`. Returns False if the user chooses the demo.

    given: the options. Raises UsageError, OpsctlError.
    """
    if folder.exists():
        raise OpsctlError(f"{folder} already exists: choose another name")
    offers, accounts, problem = _offers(cluster)
    ask: Ask = _prompt if asks else lambda _meaning, _what, default, _check: default
    if asks:
        kinds = (
            "demo: a small GPT that eight processes train on this machine\nown:  a model of the size that you choose"
        )
        if ask(kinds, "demo or own", _OWN if offers else _DEMO, _one_of((_DEMO, _OWN))) == _DEMO:
            return False
        if problem:
            message(problem)
    while True:
        wanted = _wanted(offers, accounts, given, ask)
        try:
            draft, layout = suggested(run_name, wanted)
            break
        except UsageError as error:
            if not asks:
                raise
            message(f"\n{error}. Answer again:")
    head = (
        f"{run_name}: made by opsctl init from a few answers: {billions(wanted.parameters)} parameters, "
        f"{billions(wanted.tokens)} tokens, {wanted.gpus} GPUs.",
        "docs/run-file.md lists every key; opsctl plan prints sizes and durations.",
    )
    make_run(folder, run_name, run_text(draft, head), check=load_run_file)
    message(
        f"{wanted.gpus} GPUs ({wanted.gpu}) as TP {layout.tensor} x PP {layout.pipeline} x DP {layout.data}: "
        f"{expected_days(load_run_file(folder / RUN_FILE_NAME))}, as opsctl plan estimates"
    )
    at = f" --cluster {cluster}" if cluster else ""
    steps = [
        ("write the files that [data] data_path names", "opsctl data prepare --help"),
        ("print sizes, durations and problems", "opsctl plan"),
        ("check this machine and the cluster", f"opsctl doctor{at}"),
        ("submit a chain of ten tasks, one at a time", f"opsctl submit{at}"),
    ]
    say_next(folder, steps)
    return True


def _offers(cluster: str | None) -> tuple[list[Offer], list[str], str]:
    """Return Slurm's partitions with GPUs, its accounts, and a problem; nothing if it does not answer."""
    chosen, deadline = choose_cluster(cluster, None), Deadline(_SLURM_S)
    try:
        found = [one for one in offers(chosen, deadline) if one.gpus_per_node]
        return found, accounts(chosen, deadline), ""
    except SlurmError as error:
        return [], [], str(error)


def _prompt(meaning: str, what: str, default: Any, check: Callable[[Any], Any]) -> Any:
    message("")
    for line in meaning.splitlines():
        message(line)
    return click.prompt(printable(what), default=default, value_proc=check, err=True)


def _wanted(offers: Sequence[Offer], accounts: Sequence[str], given: dict[str, Any], ask: Ask) -> Wanted:
    """Return the answers. Raises UsageError for options that contradict what Slurm offers."""
    offer, partition, account = _partition(offers, given.get("partition"), ask), given.get("partition"), None
    if offer is not None:
        partition = offer.partition
    if account := given.get("account") or (accounts[0] if accounts else None):
        names = f"Accounts that you may charge: {', '.join(accounts)}."
        account = given.get("account") or ask(names, "Account", account, _one_of(accounts))
    per_node = given.get("gpus_per_node") or (offer.gpus_per_node if offer else None)
    per_node = per_node or ask("Jobs get whole nodes.", "GPUs of each node", 8, _gpus_of_a_node)
    gpu = given.get("gpu") or (offer.gpu_type if offer and is_known_gpu(offer.gpu_type) else None)
    kinds = f"Memory and speed decide which layouts fit: {', '.join(GPU_KINDS)}."
    gpu = gpu or ask(kinds, "Kind of GPU", "A100-80", _gpu_kind)
    size = ask(
        "The size of the model, from 100M to 200B. Its shape is within 10 % of it.",
        "Parameters",
        given.get("params") or "1.3B",
        _at_least(1e6),
    )
    parameters = _NUMBER.convert(size, None, None)
    length = ask(
        f"The length of the training: at least {TOKENS_PER_PARAMETER} tokens a parameter.",
        "Tokens",
        given.get("tokens") or f"{TOKENS_PER_PARAMETER * parameters / 1e9:g}B",
        _at_least(1e6),
    )
    tokens = _NUMBER.convert(length, None, None)
    most = offer.nodes if offer else None
    there = f", {most * per_node} GPUs in the partition" if most else ""
    gpus = ask(
        f"Whole nodes of {per_node}{there}. The suggestion takes about two weeks.",
        "GPUs",
        given.get("gpus") or gpus_for(parameters, tokens, gpu, per_node, most),
        _whole_nodes(per_node),
    )
    limit = ask(
        "Slurm ends each job after this time; the next job of the chain continues.",
        "Limit of each job",
        given.get("time") or (offer.time_limit if offer else None) or "20:00:00",
        _duration,
    )
    data = ask("The training data: its path without .bin and .idx.", "Data", Wanted.data_path, str)
    return Wanted(
        parameters=parameters,
        tokens=tokens,
        gpus=int(gpus),
        gpus_per_node=per_node,
        gpu=gpu,
        time=_duration(limit),
        partition=partition,
        account=account,
        gpu_type=offer.gpu_type if offer else None,
        cpus_per_node=offer.cpus_per_node if offer else 0,
        data_path=data,
    )


def _partition(offers: Sequence[Offer], given: str | None, ask: Ask) -> Offer | None:
    by_name = {one.partition: one for one in reversed(offers)}
    if not offers or given in by_name:
        return by_name.get(given or "")
    if given is not None:
        raise UsageError(f"no partition {given!r} with GPUs: Slurm has {', '.join(reversed(by_name))}")
    rows = [
        f"  {one.partition}: {one.nodes} nodes of {one.gpus_per_node} {one.gpu_type or 'GPUs'}, "
        f"limit {one.time_limit or 'none'}"
        for one in offers
    ]
    what = "\n".join(["Slurm's partitions with GPUs:", *rows])
    return by_name[ask(what, "Partition", offers[0].partition, _one_of(tuple(by_name)))]


def _one_of(names: Sequence[str]) -> Callable[[Any], str]:
    def check(answer: Any) -> str:
        if answer not in names:
            raise click.UsageError(f"{answer!r}: type one of {', '.join(names)}")
        return str(answer)

    return check


def _gpu_kind(answer: Any) -> str:
    if not is_known_gpu(str(answer)):
        raise click.UsageError(f"{answer!r}: type the most similar of {', '.join(GPU_KINDS)}")
    return str(answer)


def _gpus_of_a_node(answer: Any) -> int:
    if not str(answer).isdecimal() or not 1 <= int(answer) <= 64:
        raise click.UsageError(f"{answer!r}: type a whole number from 1 to 64")
    return int(answer)


def _whole_nodes(per_node: int) -> Callable[[Any], int]:
    def check(answer: Any) -> int:
        if not str(answer).isdecimal() or not int(answer) or int(answer) % per_node:
            raise click.UsageError(f"{answer}: jobs get whole nodes of {per_node}")
        return int(answer)

    return check


def _at_least(least: float) -> Callable[[Any], Any]:
    def check(answer: Any) -> Any:
        if _NUMBER.convert(answer, None, None) < least:
            raise click.UsageError(f"{answer}: at least {least:g}")
        return answer

    return check


def _duration(answer: Any) -> str:
    try:
        seconds = parse_duration_s(str(answer))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if seconds < 600:
        raise click.UsageError(f"{answer}: at least ten minutes; a number alone is minutes")
    return str(answer)
