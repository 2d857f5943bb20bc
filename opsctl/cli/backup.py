"""`opsctl backup`: a run's logs and records to another place; reading again what is there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click
from msgspec.structs import replace

from opsctl.cli.backup_options import has_backup, kept_going, named_by, opened, raise_first
from opsctl.cli.checkpoints_backup import emptied_option, limit_option, to_option
from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import all_runs_option, for_runs, json_option, run_option
from opsctl.core.errors import OpsctlError, RunFileError
from opsctl.core.output import message, print_json, show_lines
from opsctl.core.timestamps import now
from opsctl.core.units import bytes_words
from opsctl.run.checkpoints.backups import read_backups
from opsctl.run.config.checks import check_run
from opsctl.run.state.run_view import RunView, glance
from opsctl.transfer.backups.data_copies import back_up_data
from opsctl.transfer.backups.data_sets import named_sets
from opsctl.transfer.backups.json_output import BackedUpRun, VerifiedBackups, backup_table, printed
from opsctl.transfer.backups.run_files import back_up_rest
from opsctl.transfer.backups.schedule import Policy, policy_of
from opsctl.transfer.backups.verify import sample_of
from opsctl.transfer.backups.verify import verify as read_again


class _LongGroup(LongCommand, click.Group):
    """A group whose own work may take hours."""


@click.group(cls=_LongGroup, internet=True, invoke_without_command=True)
@run_option
@all_runs_option
@to_option
@emptied_option
@click.option("--data", is_flag=True, help="Also copy the data sets of the run, as [backup] data = true does.")
@limit_option
@json_option(backups="list[opsctl.transfer.backups.json_output.BackedUpRun]")
@click.pass_context
def command(
    ctx: click.Context,
    run: str | None,
    all_runs: bool,
    to: str | None,
    emptied: bool,
    data: bool,
    limit: str | None,
    as_json: bool,
) -> None:
    """Copy a run's logs, records and run file to another place; with --data also its data sets.

    [backup] selects the files and the destinations. To copy checkpoints, use `opsctl checkpoints backup`. Only changed
    files are sent, and nothing at the destination is overwritten: it keeps complete earlier versions. --all-runs
    selects your runs with a [backup].
    """
    if ctx.invoked_subcommand is not None:
        return
    if all_runs and (run or to or emptied):
        raise click.UsageError("--all-runs, or one run with --to and --emptied: give one of them")

    def act(seen: RunView) -> list[BackedUpRun]:
        return _back_up(seen, to, limit, emptied, data)

    done, is_well = for_runs(run, all_runs, has_backup, act)
    if as_json:
        print_json("backups", done)
    ctx.exit(0 if is_well and not any(one.problems for one in done) else 1)


def _back_up(run: RunView, to: str | None, limit: str | None, emptied: bool, data: bool) -> list[BackedUpRun]:

    name, policy, done = run.table.name, policy_of(run, to, limit), []
    for warning in policy.warnings:
        message(f"{name}: warning: {warning}")
    run_file = run.loaded.path if run.loaded else None
    failed: list[OpsctlError] = []
    for url in policy.table.to:
        with kept_going(failed), opened(run, policy, url) as place:
            kept = back_up_rest(place, policy.table, run_file, emptied)
            for problem in kept.problems:
                message(f"{name}: {problem}")
            snapshot = kept.snapshot
            news = (
                f"{kept.files} files, {bytes_words(kept.bytes)}, snapshot {snapshot.number}"
                if snapshot
                else "nothing is new"
            )
            message(f"{name}: {url}: {news}")
            line = snapshot and replace(snapshot.line(url), files=kept.files, bytes=kept.bytes, verified_at=snapshot.at)
            sent = [printed(line)] if line else []
            done.append(BackedUpRun(run=name, to=url, sent=sent, problems=kept.problems))
    if data or policy.table.data:
        with kept_going(failed):
            done += _back_up_data(run, policy, emptied, failed)
    raise_first(failed)
    return done


def _back_up_data(run: RunView, policy: Policy, emptied: bool, failed: list[OpsctlError]) -> list[BackedUpRun]:

    name, done, sets = run.table.name, [], named_sets(_options(run))
    for url in policy.data_to:
        with kept_going(failed), opened(run, policy, url) as place:
            is_shared = url not in policy.table.to
            sent = back_up_data(place, sets, partial(_say, f"{name}: {url}: "), is_shared, emptied)
            for problem in sent.problems:
                message(f"{name}: {problem}")
            words = f"{sent.files} files, {bytes_words(sent.bytes)}" if sent.is_new or sent.files else "nothing is new"
            message(f"{name}: {url}: {len(sets)} data sets{'' if sent.line else ', NOT ALL WHOLE there'}: {words}")
            lines = [printed(sent.line)] if sent.line and sent.is_new else []
            done.append(BackedUpRun(run=name, to=url, sent=lines, problems=sent.problems))
    return done


def _say(before: str, line: str) -> None:

    message(before + line)


def _options(run: RunView) -> Mapping[str, Any]:
    """Return the trainer's options, as published, else as in the run file. Raises OpsctlError, RunFileError."""
    if run.revision is None:
        if run.loaded is None:
            raise RunFileError(run.problem)
        return check_run(run.loaded)[0].options
    if run.options is None:
        raise OpsctlError(f"{run.table.name} was published by another release, whose options this one does not know")
    return run.options


@command.command("list")
@run_option
@json_option(backups="list[opsctl.transfer.backups.json_output.PrintedBackup]")
def list_(run: str | None, as_json: bool) -> None:
    """List the recorded backups at each destination."""
    seen = glance(run)
    lines = read_backups(seen.paths)
    if as_json:
        print_json("backups", [printed(line) for line in lines])
    elif lines:
        show_lines(backup_table(lines, named_by(seen)))
    else:
        message("nothing is backed up yet; opsctl backup verify --to URL finds what lies there")


@command.command(cls=LongCommand, internet=True)
@run_option
@all_runs_option
@to_option
@click.option(
    "--sample", metavar="PERCENT", help="Read only this share of the files, such as 5%; each day another share."
)
@limit_option
@json_option(verified="list[opsctl.transfer.backups.json_output.VerifiedBackups]")
@click.pass_context
def verify(
    ctx: click.Context,
    run: str | None,
    all_runs: bool,
    to: str | None,
    sample: str | None,
    limit: str | None,
    as_json: bool,
) -> None:
    """Read the backups again and compare them with their manifests.

    Lost and damaged copies are marked, so that prune does not rely on them and the next backup sends them again. Copies
    that are not recorded here yet are recorded. Exits 1 if anything is lost or damaged.
    """
    if all_runs and (run or to):
        raise click.UsageError("--all-runs, or one run with --to: give one of them")
    done, is_well = for_runs(run, all_runs, has_backup, lambda seen: _verify(seen, to, sample, limit))
    for one in done:
        for problem in one.problems:
            message(f"{one.to}: {problem}")
        message(f"{one.to}: {one.backups} backups, {one.files} files read, {bytes_words(one.bytes)}: {_verdict(one)}")
    if as_json:
        print_json("verified", done)
    ctx.exit(0 if is_well and not any(one.lost or one.problems for one in done) else 1)


def _verdict(one: VerifiedBackups) -> str:
    wrong = [f"{len(one.lost)} NO LONGER COUNT"] if one.lost else []
    wrong += [f"{len(one.problems)} PROBLEMS, see above"] if one.problems else []
    return ", ".join(wrong) or ("each as it was sent" if one.files else "nothing was there to read")


def _verify(run: RunView, to: str | None, sample: str | None, limit: str | None) -> list[VerifiedBackups]:

    try:
        share = sample_of(sample, now().date()) if sample else None
    except ValueError as error:
        raise click.UsageError(f"--sample {error}") from None
    policy, done = policy_of(run, to, limit), []
    failed: list[OpsctlError] = []
    for url in policy.places:
        with kept_going(failed), opened(run, policy, url) as place:
            found = read_again(place, share, lambda line: message(line))
            done.append(
                VerifiedBackups(
                    to=url,
                    backups=found.backups,
                    files=found.files,
                    bytes=found.bytes,
                    lost=[printed(line) for line in found.lost],
                    problems=found.problems,
                )
            )
    raise_first(failed)
    return done
