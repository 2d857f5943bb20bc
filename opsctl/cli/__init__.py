"""The command line. Commands are imported only when called: `--help` of the whole costs click and this file."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from opsctl.core.errors import OpsctlError, SlurmUnasked
from opsctl.core.output import be_quiet, message, message_text

#: The commands by what a person wants, each with its line in `opsctl help`. The module under opsctl.cli has the name
#: of its command.
GROUPS: dict[str, dict[str, str]] = {
    "Begin a run": {
        "init": "Make a run folder: from answers, an example or a launch script.",
        "plan": "Print sizes, days, batch ramp and layout; refuse what cannot run.",
        "doctor": "Check what is missing here, and print the command that fixes it.",
        "render": "Print exactly what would be submitted; change nothing.",
        "submit": "Submit a chain of array tasks.",
        "demo": "Run everything once, on a local cluster.",
        "local-cluster": "Start a real Slurm on this machine.",
    },
    "See how it is": {
        "status": "Show state, progress, speed, last checkpoint and queue on one screen.",
        "report": "Write a run's page: curves, attempts, nodes, goodput, in one HTML file.",
        "logs": "Show or follow the training log.",
        "queue": "List the group's jobs.",
        "attempts": "List what ran and how it ended.",
        "on-call": "Print the handover: what happened, what is open, what is queued.",
        "watch": "Run checks: one line per finding, Nagios exit codes.",
        "metrics": "Print what status and watch find as numbers for Prometheus.",
        "carbon": "Report electricity and CO2e: measured, estimated, assumed.",
    },
    "Something is wrong": {
        "triage": "Find what ended a job, on which node, and what to do.",
        "kill-switch": "Stop a training, even another member's.",
        "request": "Ask the owner's job to save, stop or requeue.",
        "alerts": "List findings and messages, acknowledge them, test the channels.",
        "nodes": "List the nodes: state, jobs, recorded problems.",
        "probe": "Test the nodes of an allocation: which are slow or compute wrong.",
        "exclude": "Keep a run off bad nodes.",
        "shell": "Open an interactive job with the run's environment, or a shell in a running job.",
    },
    "Keep it going": {
        "revise": "Publish an edited run file to the queued tasks.",
        "refill": "Keep as many arrays queued as the run file says.",
        "cancel": "Cancel your own jobs of a run.",
        "cron": "Run jobs every hour and every day without crond.",
        "jobs": "List long commands that run as Slurm jobs (--job).",
    },
    "Checkpoints, copies": {
        "checkpoints": "List, show, verify, back up, prune, choose and convert checkpoints.",
        "backup": "Copy logs and records to another place, and verify the copies.",
        "restore": "Restore a whole run from its backup.",
        "hub": "Send logs, curves, carbon and checkpoints to a hub.",
    },
    "Use the model": {
        "evaluate": "Evaluate checkpoints with lm-eval, by schedule or by hand.",
        "generate": "Continue a prompt with a checkpoint's model.",
        "export": "Write checkpoints in the formats of other programs.",
        "import": "Read a published model as a checkpoint.",
    },
    "Data, environment": {
        "data": "Turn text into the trainer's data files.",
        "env": "Build, freeze and check the Python environment of a run.",
        "kernels": "Build, list and check compiled operations before a training.",
        "disk": "Show who uses what and what is about to be purged.",
        "perms": "Check that the group can use the files, or give it access.",
    },
    "About opsctl": {
        "help": "List every command in a line, or describe one.",
        "completion": "Print what makes Tab complete in bash, zsh and fish.",
        "man": "Write manual pages of all commands.",
        "json-schema": "Print the JSON Schema of what --json prints.",
    },
}
COMMANDS = {name: line for names in GROUPS.values() for name, line in names.items()}
#: Called by scripts, not by people.
HIDDEN = ("job",)
#: Commands that may change Slurm's queue. After them, cached answers of Slurm are dropped.
CHANGES_QUEUE = {
    *("submit", "revise", "refill", "cancel", "exclude", "probe", "request", "kill-switch", "alerts", "nodes"),
    *("cron", "jobs", "job", "shell", "local-cluster"),
}
#: Set by a shell when Tab is pressed.
COMPLETION_VARIABLE = "_OPSCTL_COMPLETE"


class LazyGroup(click.Group):
    """A group that knows its commands' names and help lines without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `--help`, without the hidden ones."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command. Return None for an unknown name."""
        if cmd_name not in COMMANDS and cmd_name not in HIDDEN:
            return None
        module = "import_" if cmd_name == "import" else cmd_name.replace("-", "_")
        command: click.Command = importlib.import_module(f"opsctl.cli.{module}").command
        if cmd_name in COMMANDS:
            add_quiet(command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Resolve as click does. Raises UsageError with the nearest name for an unknown command."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], list(COMMANDS), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise click.UsageError(f"no command {args[0]!r}{hint} (opsctl --help lists them)")
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        """Return the help. The width is found here, as click would import shutil for that."""
        try:
            columns = int(os.environ.get("COLUMNS", 0)) or os.get_terminal_size(1).columns
        except (ValueError, OSError):
            columns = 80
        ctx.terminal_width = max(min(columns, 110) - 2, 50)
        return super().get_help(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names by group, so that they fit one screen; `opsctl help` has a line for each."""
        with formatter.section("Commands"):
            formatter.write_dl([(heading, " ".join(names)) for heading, names in GROUPS.items()])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands only: the epilogue names the two options."""
        self.format_commands(ctx, formatter)


def add_quiet(command: click.Command) -> click.Command:
    """Add `-q` to a command, or to the commands of a group. Return the command."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    for one in below:
        add_quiet(one)
    if (not below or command.params) and not any(one.name == "quiet" for one in command.params):
        what = "Print only data and errors, no messages."
        command.params.append(
            click.Option(["-q", "--quiet"], is_flag=True, expose_value=False, callback=_set_quiet, help=what)
        )
    return command


def _set_quiet(_ctx: click.Context, _option: click.Parameter, is_given: bool) -> None:
    if is_given:
        be_quiet(True)


def _show_version(ctx: click.Context, _option: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        from opsctl.core.output import show
        from trainer.formats.distribution import version

        show(f"opsctl, version {version()}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    subcommand_metavar="COMMAND ...",
    epilog="opsctl alone prints what to do next here; opsctl COMMAND --help describes a command; opsctl help has a "
    "line for each; opsctl --version.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def root(ctx: click.Context) -> None:
    """Plan, submit, watch and stop long language-model trainings on a shared Slurm cluster."""
    if ctx.invoked_subcommand is None:
        from opsctl.cli.next_steps import show_what_is_next

        ctx.exit(show_what_is_next())


def main(argv: list[str] | None = None) -> None:
    """Run the command line; turn every error that a user can cause into one line and an exit code.

    0 done, 1 failed or refused, 2 usage or run file, 130 interrupted; under `watch` Nagios's codes, 3 for wrong usage.
    """
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from opsctl.cli.completion import answer

        answer(root, COMMANDS, instruction)
        sys.exit(0)
    args = list(sys.argv[1:] if argv is None else argv)
    is_check = args[:1] == ["watch"]
    be_quiet(False)
    try:
        try:
            code = root.main(args=args, prog_name="opsctl", standalone_mode=False)
        finally:
            _drop_cached_answers(args)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        message("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        # The reader has left. Print nothing, as other Unix tools do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except click.ClickException as error:
        text = error.format_message()
        is_help = text.startswith("Usage: ")  # a group called without a command
        message_text(text if is_help else f"opsctl: {text}")
        sys.exit(3 if is_check else error.exit_code)
    except OpsctlError as error:
        message(f"opsctl: {error}{_local_cluster_hint(error)}")
        sys.exit(3 if is_check else error.exit_code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        message(f"opsctl: {where}{error.strerror or error}")
        sys.exit(3 if is_check else 1)


def _local_cluster_hint(error: OpsctlError) -> str:
    """Return what to add to the command where it found no Slurm and a local cluster is up here."""
    if not isinstance(error, SlurmUnasked):
        return ""
    from opsctl.cli.selection import local_cluster_option

    try:
        option = local_cluster_option()
    except (OpsctlError, OSError):
        return ""
    name = option.rpartition(" ")[2]
    return f"; a local cluster is up here: add{option}, or export OPSCTL_CLUSTER={name}" if option else ""


def _drop_cached_answers(args: list[str]) -> None:
    if args and (args[0] in CHANGES_QUEUE or "--job" in args):
        from opsctl.slurm.cache import forget

        forget()
