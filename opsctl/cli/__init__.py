"""The command line. Commands are imported only when called: `--help` of the whole costs click and this file."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from opsctl.core.errors import OpsctlError, SlurmUnasked
from opsctl.core.output import message, message_text

#: name -> (module under opsctl.cli that has `command`, the line in `opsctl --help`), in the order people meet them.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init", "A new run folder from an example."),
    "plan": ("plan", "Sizes, days, batch ramp, iterations, layout; refuses what cannot run."),
    "render": ("render", "Exactly what would be submitted; changes nothing."),
    "submit": ("submit", "Submit a chain of array tasks."),
    "revise": ("revise", "Publish an edited run file to the tasks already queued."),
    "cancel": ("cancel", "Cancel your own jobs of a run."),
    "refill": ("refill", "Keep as many arrays queued as the run file says."),
    "status": ("status", "One screen: state, progress, speed, last checkpoint, queue."),
    "on-call": ("on_call", "The hand-over: what happened, what is open, what is queued."),
    "queue": ("queue", "The group's jobs."),
    "report": ("report", "A run's page: curves, attempts, nodes, goodput, in one HTML file."),
    "logs": ("logs", "Show or follow the training log."),
    "attempts": ("attempts", "What ran and how it ended."),
    "triage": ("triage", "What killed it, which node, and what to do."),
    "watch": ("watch", "Checks with one line per finding and Nagios exit codes."),
    "alerts": ("alerts", "What was found and told, who looks after it, the channels."),
    "metrics": ("metrics", "What status and watch find, as numbers for a site's Prometheus."),
    "carbon": ("carbon", "Electricity and CO2e: measured, weighed up, assumed."),
    "nodes": ("nodes", "The nodes: their state, who is on them, what speaks against them."),
    "exclude": ("exclude", "Keep a run off nodes that are bad."),
    "kill-switch": ("kill_switch", "Stop a training that may be somebody else's job."),
    "request": ("request", "Have the owner's job save, stop, requeue or change its chain."),
    "cron": ("cron", "Jobs every hour and every day where there is no crond."),
    "jobs": ("jobs", "Long commands that run as Slurm jobs (--job)."),
    "shell": ("shell", "An interactive job with the run's environment, or a shell in a running one."),
    "checkpoints": ("checkpoints", "What there is to go on from: look, back up, prune, go back, convert."),
    "backup": ("backup", "Logs and records to another place; read again what is there."),
    "restore": ("restore", "A whole run from where it is backed up."),
    "hub": ("hub", "Logs, curves, carbon and checkpoints on a hub."),
    "export": ("export", "Checkpoints in the formats that others read."),
    "evaluate": ("evaluate", "Checkpoints held to lm-eval, by schedule or by hand."),
    "generate": ("generate", "What a checkpoint's model says after a prompt."),
    "import": ("import_", "What others have published, as a checkpoint."),
    "data": ("data", "Turn text into the trainer's data files."),
    "env": ("env", "The Python environment of a run: build, freeze, check."),
    "kernels": ("kernels", "Compiled operations, ahead of a training: build, list, check."),
    "disk": ("disk", "Who uses what, what is about to be purged, and touching it."),
    "perms": ("perms", "Whether the group can work with its files; open them."),
    "doctor": ("doctor", "What is missing here, and the command that mends it."),
    "probe": ("probe", "Test the nodes of an allocation: who is slow, who computes wrong."),
    "local-cluster": ("local_cluster", "A real Slurm on this machine."),
    "demo": ("demo", "The main job, all of it, on a local cluster."),
    "json-schema": ("json_schema", "What --json prints, as JSON Schema."),
    "completion": ("completion", "What makes Tab complete in bash, zsh and fish."),
    "man": ("man", "Manual pages of all commands."),
    "help": ("help", "Every command in a line; of one, all that it takes."),
}
#: What a person wants -> the commands for it, as `opsctl --help` shows them.
GROUPS: dict[str, tuple[str, ...]] = {
    "Begin a run": ("init", "plan", "doctor", "render", "submit", "demo", "local-cluster"),
    "See how it is": ("status", "report", "logs", "queue", "attempts", "on-call", "watch", "metrics", "carbon"),
    "Something is wrong": ("triage", "kill-switch", "request", "alerts", "nodes", "probe", "exclude", "shell"),
    "Keep it going": ("revise", "refill", "cancel", "cron", "jobs"),
    "Checkpoints, copies": ("checkpoints", "backup", "restore", "hub"),
    "Use the model": ("evaluate", "generate", "export", "import"),
    "What it stands on": ("data", "env", "kernels", "disk", "perms"),
    "About opsctl": ("help", "completion", "man", "json-schema"),
}
#: What people type who come from other programs -> the command that they want.
MEANT = {
    **dict.fromkeys(("run", "train", "start", "launch", "resume", "sbatch"), "submit"),
    **dict.fromkeys(("stop", "kill"), "kill-switch trigger"),
    **dict.fromkeys(("new", "create"), "init"),
    **dict.fromkeys(("config", "validate", "check"), "plan"),
    **dict.fromkeys(("log", "tail"), "logs"),
    "squeue": "queue",
    "scancel": "cancel",
}
#: Called by scripts, not by people.
HIDDEN = {"job": ("job", "What runs inside an allocation.")}

#: Those that cannot change what Slurm has in its queue. After any other the shared answers are forgotten.
LOOKS = {
    "init",
    "plan",
    "render",
    "status",
    "on-call",
    "queue",
    "report",
    "logs",
    "attempts",
    "triage",
    "carbon",
    "backup",
    "restore",
    "checkpoints",
    "watch",
    "metrics",
    "hub",
    "data",
    "evaluate",
    "export",
    "generate",
    "import",
    "env",
    "kernels",
    "perms",
    "disk",
    "doctor",
    "demo",
    "json-schema",
    "completion",
    "man",
    "help",
}
#: Set by a shell in which Tab was pressed.
COMPLETION_VARIABLE = "_OPSCTL_COMPLETE"


class LazyGroup(click.Group):
    """A group that knows its commands' names and help lines without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the order of `--help`, without the hidden ones."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, its module imported now; None for a name that nobody has."""
        entry = COMMANDS.get(cmd_name) or HIDDEN.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = importlib.import_module(f"opsctl.cli.{entry[0]}").command
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """As click's. Raises UsageError with the nearest name for a command that is not there."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib

            meant = MEANT.get(args[0]) or next(iter(difflib.get_close_matches(args[0], list(COMMANDS), 1)), None)
            hint = f"; did you mean {meant}?" if meant else ""
            raise click.UsageError(f"no command {args[0]!r}{hint} (opsctl --help lists them)")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The names by what a person wants, so that all of it fits one screen; `opsctl help` has a line for each."""
        with formatter.section("Commands"):
            formatter.write_dl([(heading, " ".join(names)) for heading, names in grouped().items()])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands alone: the two options are in their epilogue."""
        self.format_commands(ctx, formatter)


def grouped() -> dict[str, list[str]]:
    """What a person wants -> the names of the commands for it that there are."""
    return {heading: [name for name in names if name in COMMANDS] for heading, names in GROUPS.items()}


def _show_version(ctx: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from opsctl.core.output import show
        from trainer.formats.distribution import version

        show(f"opsctl, version {version()}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    subcommand_metavar="COMMAND ...",
    epilog="opsctl alone says what to do next here; opsctl COMMAND --help says more of one; opsctl help has a line for "
    "each; opsctl --version.",
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
    """Run the command line; turn every error a user can meet into one line and an exit code.

    0 done, 1 failed or refused, 2 usage or run file, 130 interrupted; under `watch` Nagios's codes, 3 for wrong usage.
    """
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from opsctl.cli.complete import answer

        answer(root, COMMANDS, instruction)
        sys.exit(0)
    args = list(sys.argv[1:] if argv is None else argv)
    is_check = args[:1] == ["watch"]
    try:
        try:
            code = root.main(args=args, prog_name="opsctl", standalone_mode=False)
        finally:
            _forget_after(args)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        message("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read us has left; say nothing, as other Unix tools do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except click.ClickException as error:
        said = error.format_message()
        is_help = said.startswith("Usage: ")  # a group called without a command
        message_text(said if is_help else f"opsctl: {said}")
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


def _forget_after(args: list[str]) -> None:
    """What Slurm has said to others of this account no longer counts when this command may have changed it."""
    if args and (args[0] not in LOOKS or "--job" in args) and not args[0].startswith("-"):
        from opsctl.slurm.cache import forget

        forget()
