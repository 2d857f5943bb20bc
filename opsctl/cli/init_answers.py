"""The questions of `opsctl init` for a new run: Slurm's partitions, answers or options, and a layout that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opsctl.cli.plan import Number

if TYPE_CHECKING:
    from opsctl.run.init.suggestions import Wanted
    from opsctl.slurm.partitions_offered import Offer

#: Seconds to wait for Slurm's partitions before the first question.
_SLURM_S = 6.0
_DEMO, _OWN = "demo", "own"
_FEWEST_PARAMETERS = 1e6


def make_from_answers(folder: Path, run_name: str, cluster: str | None, said: dict[str, Any], asks: bool) -> bool:
    """Make the run. said: the options that were given. asks: a person is here and has given none.

    False where he would rather have the demo. Raises UsageError, OpsctlError.
    """
    from opsctl.cli.new_run import make_run, say_next
    from opsctl.core.errors import OpsctlError, UsageError
    from opsctl.core.output import message
    from opsctl.run.config.load import load_run_file
    from opsctl.run.init.draft import run_text
    from opsctl.run.init.suggestions import suggested
    from opsctl.run.planning.costs import days_text
    from opsctl.run.planning.section import billions

    if folder.exists():
        raise OpsctlError(f"{folder} already exists: choose another name")
    found, accounts, problem = _offers(cluster)
    if asks and not _wants_a_model(bool(found)):
        return False
    if asks and problem:  # only now is it anything to him: the demo asks Slurm nothing yet
        message(problem)
    while True:
        wanted = _wanted(found, accounts, said, _Asking(asks))
        try:
            begun, layout, days = suggested(run_name, wanted)
            break
        except UsageError as error:
            if not asks:
                raise
            message("")
            message(f"{error}. Once more:")
    head = (
        f"{run_name}: made by opsctl init from a few answers: {billions(wanted.parameters)} parameters, "
        f"{billions(wanted.tokens)} tokens, {wanted.gpus} GPUs.",
        "docs/run-file.md has all that may stand here; opsctl plan says what it comes to.",
    )
    make_run(folder, run_name, run_text(begun, head), check=load_run_file)
    message(
        f"{wanted.gpus} GPUs ({wanted.gpu}) as TP {layout.tensor} x PP {layout.pipeline} x DP {layout.data}, "
        f"{layout.seconds_per_iteration:.3g} s a step: about {days_text(days, wanted.gpus)}, estimated "
        "from data sheets; opsctl plan assumes a usual share of the peak"
    )
    if asks:
        _examine(folder, cluster)
    at = f" --cluster {cluster}" if cluster else ""
    steps = [
        ("text to the files that [data] data_path names", "opsctl data prepare --help"),
        ("what it comes to, and what is missing", "opsctl plan"),
        *([] if asks else [("what is missing here", f"opsctl doctor{at}")]),
        ("a chain of ten tasks, one at a time", f"opsctl submit{at}"),
    ]
    say_next(folder, steps)
    return True


def _offers(cluster: str | None) -> tuple[list[Offer], list[str], str]:
    """Return Slurm's partitions with GPUs, its accounts, and a problem; nothing if it does not answer."""
    from opsctl.core.errors import SlurmError
    from opsctl.run.state.chosen_cluster import choose_cluster
    from opsctl.slurm.client import Deadline
    from opsctl.slurm.partitions_offered import accounts, offers

    chosen, deadline = choose_cluster(cluster, None), Deadline(_SLURM_S)
    try:
        found = [one for one in offers(chosen, deadline) if one.gpus_per_node]
        return found, accounts(chosen, deadline), ""
    except SlurmError as error:
        return [], [], str(error)


class _Asking:
    """The questions, each with an explanation and a default. Without a terminal the default is the answer."""

    def __init__(self, asks: bool) -> None:
        self.asks = asks

    def __call__(
        self, meaning: str | Sequence[str], what: str, default: Any, convert: Callable[[Any], Any] | None = None
    ) -> Any:
        from opsctl.core.output import message, printable

        if not self.asks:
            return default
        message("")
        for line in (meaning,) if isinstance(meaning, str) else meaning:
            message(line)
        return click.prompt(printable(what), default=default, value_proc=convert, err=True)


def _wants_a_model(has_gpus: bool) -> bool:
    kinds = (
        "What is it to be?",
        "  demo  a small GPT that eight processes train on this machine, to see what everything does",
        "  own   a model of a size that you say, on your cluster",
    )
    answer = _Asking(True)(kinds, "demo or own", _OWN if has_gpus else _DEMO, _one_of((_DEMO, _OWN)))
    return bool(answer == _OWN)


def _wanted(found: Sequence[Offer], accounts: Sequence[str], said: dict[str, Any], ask: _Asking) -> Wanted:
    """Return the answers. Raises UsageError for options that contradict what Slurm offers."""
    from opsctl.run.init.suggestions import GPU_KINDS, TOKENS_PER_PARAMETER, Wanted, gpus_for, is_known_gpu

    offer = _partition(found, said.get("partition"), ask)
    partition = offer.partition if offer else said.get("partition")
    account = said.get("account") or _account(accounts, ask)
    per_node = said.get("gpus_per_node") or (offer.gpus_per_node if offer else None)
    if per_node is None:
        per_node = ask("Jobs get whole nodes.", "GPUs of each node", 8, _gpus_of_a_node)
    gpu = said.get("gpu") or (offer.gpu_type if offer and is_known_gpu(offer.gpu_type) else None)
    if gpu is None:
        gpu = ask(
            f"Memory and speed decide which layouts fit: {', '.join(GPU_KINDS)}.", "Kind of GPU", "A100-80", _gpu_kind
        )
    number = Number(whole=False)
    size = ask(
        "How large the model is. Its shape comes within 2 % of the number, from 100M to 200B.",
        "Parameters",
        said.get("params") or "1.3B",
        _at_least(number, _FEWEST_PARAMETERS),
    )
    parameters = number.convert(size, None, None)
    tokens = number.convert(
        ask(
            f"How long it is trained. {TOKENS_PER_PARAMETER} tokens a parameter is the least that pays; more makes a "
            "better model of this size.",
            "Tokens",
            said.get("tokens") or f"{TOKENS_PER_PARAMETER * parameters / 1e9:g}B",
            _at_least(number, 1e6),
        ),
        None,
        None,
    )
    most = offer.nodes if offer else None
    gpus = int(
        ask(
            f"Whole nodes of {per_node}"
            + (f", {most * per_node} GPUs in the partition" if most else "")
            + "; the suggestion takes about two weeks.",
            "GPUs",
            said.get("gpus") or gpus_for(parameters, tokens, gpu, per_node, most),
            _whole_nodes(per_node),
        )
    )
    limit = ask(
        "After so long Slurm ends each job; the next one of the chain goes on.",
        "Limit of each job",
        said.get("time") or (offer.time_limit if offer else None) or "20:00:00",
        _duration,
    )
    _duration(limit)
    data = ask(
        "Where the training data is: what stands before .bin and .idx; it may be made later.",
        "Data",
        Wanted.data_path,
    )
    return Wanted(
        parameters=parameters,
        tokens=tokens,
        gpus=gpus,
        gpus_per_node=per_node,
        gpu=gpu,
        time=limit,
        partition=partition,
        account=account,
        gpu_type=offer.gpu_type if offer else None,
        cpus_per_node=offer.cpus_per_node if offer else 0,
        data_path=data,
    )


def _partition(found: Sequence[Offer], said: str | None, ask: _Asking) -> Offer | None:
    from opsctl.core.errors import UsageError

    if said is not None:
        chosen = next((one for one in found if one.partition == said), None)
        if found and chosen is None:
            names = ", ".join(dict.fromkeys(one.partition for one in found))
            raise UsageError(f"no partition {said!r} with GPUs: Slurm has {names}")
        return chosen
    if not found:
        return None
    by_name = {one.partition: one for one in reversed(found)}
    rows = (
        f"  {one.partition}: {one.nodes} nodes of {one.gpus_per_node} {one.gpu_type or 'GPUs'}, "
        f"limit {one.time_limit or 'none'}"
        for one in found
    )
    what = ("Where it runs. Slurm's partitions with GPUs:", *rows)
    name = ask(what, "Partition", found[0].partition, _one_of(tuple(by_name)))
    return by_name[name]


def _account(accounts: Sequence[str], ask: _Asking) -> str | None:
    if not accounts:
        return None
    name = ask(
        f"Accounts that you may charge: {', '.join(accounts)}.", "Account", accounts[0], _one_of(tuple(accounts))
    )
    return str(name)


def _one_of(names: Sequence[str]) -> Callable[[Any], str]:
    def convert(answer: Any) -> str:
        found = [name for name in names if name == answer] or [name for name in names if name.startswith(str(answer))]
        if len(found) != 1:
            raise click.UsageError(f"{answer!r}: type one of {', '.join(names)}")
        return found[0]

    return convert


def _gpu_kind(answer: Any) -> str:
    from opsctl.run.init.suggestions import GPU_KINDS, is_known_gpu

    if not is_known_gpu(str(answer)):
        raise click.UsageError(f"{answer!r}: known are {', '.join(GPU_KINDS)}; take the one that is most like yours")
    return str(answer)


def _gpus_of_a_node(answer: Any) -> int:
    from opsctl.cli.init import GPUS_PER_NODE

    try:
        count: int = GPUS_PER_NODE(str(answer).strip())
    except click.BadParameter:
        least, most = GPUS_PER_NODE.min, GPUS_PER_NODE.max
        raise click.UsageError(f"{answer!r}: type a whole number from {least} to {most}") from None
    return count


def _whole_nodes(per_node: int) -> Callable[[Any], int]:
    def convert(answer: Any) -> int:
        if not str(answer).isdecimal() or not int(answer) or int(answer) % per_node:
            raise click.UsageError(f"{answer}: jobs get whole nodes of {per_node}")
        return int(answer)

    return convert


def _at_least(number: Number, least: float) -> Callable[[Any], Any]:
    def convert(answer: Any) -> Any:
        if number.convert(answer, None, None) < least:
            raise click.UsageError(f"{answer}: at least {least:g}")
        return answer

    return convert


def _duration(answer: Any) -> str:
    from opsctl.slurm.durations import parse_duration_s

    try:
        seconds = parse_duration_s(str(answer))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if seconds < 600:
        raise click.UsageError(f"{answer}: ten minutes at least, a number alone is minutes")
    return str(answer)


def _examine(folder: Path, cluster: str | None) -> None:
    """Run `opsctl doctor` on the new run. Its findings do not fail this command."""
    from opsctl.cli.doctor import command as doctor
    from opsctl.core.output import message
    from opsctl.run.config.locate import RUN_FILE_NAME

    message("")
    message("opsctl doctor:")
    words = [str(folder / RUN_FILE_NAME), *(["--cluster", cluster] if cluster else [])]
    doctor.main(words, standalone_mode=False)
