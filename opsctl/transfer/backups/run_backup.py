"""Back up and verify one run at each of its destinations. A destination that fails stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from opsctl.core.errors import OpsctlError, RunFileError
from opsctl.core.units import bytes_words
from opsctl.run.config.checks import check_run
from opsctl.run.state.run_view import RunView
from opsctl.transfer.backups.data_copies import back_up_data
from opsctl.transfer.backups.data_sets import NamedSet, named_sets
from opsctl.transfer.backups.destination import Destination, Wish, back_up, plan_backup
from opsctl.transfer.backups.json_output import BackedUpRun, DueBackup, VerifiedBackups, printed
from opsctl.transfer.backups.run_files import back_up_rest
from opsctl.transfer.backups.schedule import Policy, never_whole
from opsctl.transfer.backups.verify import Sample, verify
from trainer.formats.checkpoint.manifest import tag_of

Opened = Callable[[RunView, Policy, str], AbstractContextManager[Destination]]
Say = Callable[[str], None]
T = TypeVar("T")


def back_up_run(
    run: RunView, policy: Policy, emptied: bool, with_data: bool, opened: Opened, say: Say
) -> list[BackedUpRun]:
    """Send logs, records and run file to each destination, then the data sets if `with_data` or the policy wants them.

    emptied: the destinations were emptied on purpose. Raises OpsctlError.
    """
    name, run_file = run.table.name, run.loaded.path if run.loaded else None
    _report(name, policy.warnings, say, "warning: ")

    def rest(place: Destination) -> BackedUpRun:
        kept = back_up_rest(place, policy.table, run_file, emptied)
        _report(name, kept.problems, say)
        news, sent, snapshot = "nothing is new", [], kept.snapshot
        if snapshot:
            news = f"{kept.files} files, {bytes_words(kept.bytes)}, snapshot {snapshot.number}"
            line = replace(snapshot.line(place.to), files=kept.files, bytes=kept.bytes, verified_at=snapshot.at)
            sent = [printed(line)]
        say(f"{name}: {place.to}: {news}")
        return BackedUpRun(run=name, to=place.to, sent=sent, problems=kept.problems)

    def data(place: Destination) -> BackedUpRun:
        sets, where = _data_sets(run), f"{name}: {place.to}"
        is_shared = place.to not in policy.table.to
        sent = back_up_data(place, sets, lambda line: say(f"{where}: {line}"), is_shared, emptied)
        _report(name, sent.problems, say)
        words = f"{sent.files} files, {bytes_words(sent.bytes)}" if sent.is_new or sent.files else "nothing is new"
        say(f"{where}: {len(sets)} data sets{'' if sent.line else ', NOT ALL WHOLE there'}: {words}")
        lines = [printed(sent.line)] if sent.line and sent.is_new else []
        return BackedUpRun(run=name, to=place.to, sent=lines, problems=sent.problems)

    steps = [(url, rest) for url in policy.table.to]
    steps += [(url, data) for url in policy.data_to if with_data or policy.table.data]
    return _at_each(steps, partial(opened, run, policy), say)


def back_up_checkpoints(
    run: RunView, policy: Policy, wish: Wish, dry_run: bool, opened: Opened, say: Say
) -> list[BackedUpRun]:
    """Send the checkpoints that each destination should have and has not; with `dry_run` only list them.

    Raises OpsctlError.
    """
    name, table = run.table.name, policy.table
    _report(name, filter(None, (*policy.warnings, never_whole(table, run))), say, "warning: ")

    def send(place: Destination) -> BackedUpRun:
        chosen = plan_backup(place, table, wish)
        for due in chosen.due:
            say(f"{tag_of(due.iteration)}: {due.what.words} to {place.to}: {due.reason}, {due.news}")
        for iteration, why in chosen.left.items():
            say(f"{tag_of(iteration)} is not sent: {why}")
        if not (chosen.due or chosen.there or chosen.left):
            every = f"full_every = {table.full_every:,} or weights_every = {table.weights_every:,}"
            say(f"{name}: nothing is due: no checkpoint here is a multiple of {every}; --step N sends one")
        sent = None if dry_run or not chosen.due else back_up(place, table, wish, say)
        lines, problems = (sent.lines, list(sent.problems)) if sent else ([], [])
        _report(name, problems, say)
        say(f"{name}: {place.to}: {len(lines)} of {len(chosen.due)} sent, {len(chosen.there)} there already")
        return BackedUpRun(
            run=name,
            to=place.to,
            due=[
                DueBackup(iteration=one.iteration, what=one.what.value, reason=one.reason, news=one.news)
                for one in chosen.due
            ],
            sent=[printed(line) for line in lines],
            there=list(chosen.there),
            left={str(iteration): why for iteration, why in chosen.left.items()},
            problems=problems,
            dry_run=dry_run,
        )

    return _at_each([(url, send) for url in table.to], partial(opened, run, policy), say)


def verify_run(run: RunView, policy: Policy, sample: Sample | None, opened: Opened, say: Say) -> list[VerifiedBackups]:
    """Read the copies of the run at each destination: today's `sample` of the files, or all. Raises OpsctlError."""
    steps = [(url, lambda place: verify(place, sample, say)) for url in policy.places]
    return _at_each(steps, partial(opened, run, policy), say)


def _at_each(
    steps: Iterable[tuple[str, Callable[[Destination], T]]],
    opened: Callable[[str], AbstractContextManager[Destination]],
    say: Say,
) -> list[T]:
    """Return the result of each step at its destination. Raises the first OpsctlError after the last step."""
    done, failed = [], []
    for url, act in steps:
        try:
            with opened(url) as place:
                done.append(act(place))
        except OpsctlError as error:
            failed.append(error)
    for later in failed[1:]:
        say(str(later))
    if failed:
        raise failed[0]
    return done


def _report(name: str, lines: Iterable[str], say: Say, kind: str = "") -> None:
    for line in lines:
        say(f"{name}: {kind}{line}")


def _data_sets(run: RunView) -> list[NamedSet]:
    """Return the data sets that the published options name, else those of the run file. Raises OpsctlError."""
    if run.revision is None:
        if run.loaded is None:
            raise RunFileError(run.problem)
        return named_sets(check_run(run.loaded)[0].options)
    if run.options is None:
        raise OpsctlError(
            f"{run.table.name} was published by another release of opsctl, with options that this one does not know"
        )
    return named_sets(run.options)
