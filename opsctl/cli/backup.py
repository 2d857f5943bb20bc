"""`opsctl backup`: a run's logs and records to another place; reading again what is there."""

from __future__ import annotations

import click

from opsctl.cli.backup_options import named_by, opened
from opsctl.cli.checkpoints_backup import emptied_option, limit_option, to_option
from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import all_runs_option, for_runs, json_option, run_option
from opsctl.core.output import message, print_json, show_lines
from opsctl.core.timestamps import now
from opsctl.core.units import bytes_words
from opsctl.run.checkpoints.backups import read_backups
from opsctl.run.state.run_view import glance
from opsctl.transfer.backups.json_output import VerifiedBackups, backup_table, printed
from opsctl.transfer.backups.run_backup import back_up_run, verify_run
from opsctl.transfer.backups.schedule import has_backup, policy_of
from opsctl.transfer.backups.verify import sample_of


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
    if all_runs and (to or emptied):
        raise click.UsageError("--all-runs cannot be combined with --to or --emptied")
    done, is_well = for_runs(
        run,
        all_runs,
        has_backup,
        lambda seen: back_up_run(seen, policy_of(seen, to, limit), emptied, data, opened, message),
    )
    if as_json:
        print_json("backups", done)
    ctx.exit(0 if is_well and not any(one.problems for one in done) else 1)


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
        message("no backup is recorded; to find backups at a destination: opsctl backup verify --to URL")


@command.command(cls=LongCommand, internet=True)
@run_option
@all_runs_option
@to_option
@click.option(
    "--sample", metavar="PERCENT", help="Read only this share of the files, such as 5%; a different share each day."
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
    that the run's records lack are added to them. Exits 1 if anything is lost or damaged.
    """
    if all_runs and to:
        raise click.UsageError("--all-runs cannot be combined with --to")
    try:
        share = sample_of(sample, now().date()) if sample else None
    except ValueError as error:
        raise click.UsageError(f"--sample {error}") from None
    done, is_well = for_runs(
        run, all_runs, has_backup, lambda seen: verify_run(seen, policy_of(seen, to, limit), share, opened, message)
    )
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
