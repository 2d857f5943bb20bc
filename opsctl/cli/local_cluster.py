"""`opsctl local-cluster`: a real Slurm on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from opsctl.cli.selection import Function, json_option
from opsctl.core.output import is_quiet, message, print_json, printable, show, write_screen

DEFAULT_NAME = "local"


def where_options(function: Function) -> Function:
    """`--name` and `--folder`."""
    name = click.option("--name", help=f"The cluster's name [default: {DEFAULT_NAME}].")
    folder = click.option(
        "--folder",
        type=click.Path(file_okay=False, path_type=Path),
        help="Its folder [default: by its name, in the state folder].",
    )
    return name(folder(function))


@click.group()
def command() -> None:
    """Run a real Slurm on this machine, in one folder, without root."""


@command.command()
@where_options
@click.option("--nodes", type=click.IntRange(1, 1024), help="Nodes [default: 4].")
@click.option("--gpus", type=click.IntRange(0, 64), help="GPUs per node [default: 2].")
@click.option(
    "--accounting", is_flag=True, help="Start slurmdbd with a private MariaDB: accounts, limits and QoS are enforced."
)
@click.option(
    "--slurm-prefix",
    type=click.Path(file_okay=False),
    help="Use the Slurm installed in this folder [default: this machine's].",
)
@click.option(
    "--simulate", is_flag=True, help="Start one slurmd for all nodes. Jobs can be queued, but no node runs anything."
)
def up(name: str | None, folder: Path | None, **given: Any) -> None:
    """Start a cluster, or those parts of it that do not run."""
    from opsctl.local.cluster.files import places_of, read_description
    from opsctl.local.cluster.lifecycle import up as bring_up
    from opsctl.local.cluster.spec import plain

    nodes, gpus, simulate = (given.pop(key) for key in ("nodes", "gpus", "simulate"))
    place = _folder(name, folder)
    called = name or (place.name if folder else DEFAULT_NAME)
    if nodes is None and gpus is None and not simulate and not any(given.values()):
        before = read_description(places_of(place))  # `up` alone starts what was here, with its queue
        spec = before.spec if before else plain(called)
    else:
        counts = (4 if nodes is None else nodes, 2 if gpus is None else gpus)
        spec = plain(called, *counts, one_slurmd=simulate, **given)
    # As after Ctrl-C: what was started is ended before the command exits.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with _progress() as show:
        cluster = bring_up(spec, place, show)
    options = _where(cluster.folder)
    message(
        f"{spec.name} {'is up already' if cluster.was_up else 'is up'}: {cluster.spec.summary}, in {cluster.folder}"
    )
    closed = _closed_to_others(cluster.folder)
    if closed is not None and os.getuid() == 0:
        message(f"note: only root can enter {closed}; for jobs of other users choose another --folder")
    message("next:")
    message(f"  opsctl submit --cluster {_reach(cluster.folder)}      # in a run's folder; opsctl init demo makes one")
    message(f"  opsctl local-cluster exec{options} -- squeue")
    message(f"  opsctl local-cluster down{options}")


def _closed_to_others(folder: Path) -> Path | None:
    """Return the folder, or the one above it, that other users may not enter."""
    return next((one for one in (folder, *folder.parents) if not one.stat().st_mode & 0o001), None)


def _folder(name: str | None, folder: Path | None) -> Path:
    from opsctl.run.state.chosen_cluster import local_clusters_folder

    if folder is not None:
        return folder
    if name is not None and (not name or os.sep in name or name.startswith((".", "-"))):
        raise click.UsageError(
            f"{name!r} is no name for a cluster: letters, digits, - and _ (a place is given with --folder)"
        )
    return local_clusters_folder() / (name or DEFAULT_NAME)


def _reach(folder: Path) -> str:
    """Return what `--cluster` needs: the name, or the folder quoted for a shell."""
    import shlex

    from opsctl.run.state.chosen_cluster import local_clusters_folder

    named = folder.parent == Path(os.path.realpath(local_clusters_folder()))
    return shlex.quote(folder.name if named else str(folder))


def _where(folder: Path) -> str:
    reach = _reach(folder)
    if reach == DEFAULT_NAME:
        return ""
    return f" --name {reach}" if os.sep not in reach else f" --folder {reach}"


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield what shows one line on stderr that is written over on a terminal; nothing elsewhere."""
    shown = sys.stderr.isatty() and not is_quiet()

    def show(line: str) -> None:
        if shown:
            write_screen(f"\r\x1b[K{printable(line)}", sys.stderr)

    try:
        yield show
    finally:
        show("")


@command.command()
@where_options
def down(name: str | None, folder: Path | None) -> None:
    """Stop all processes of a cluster. Its folder, logs and queue are kept."""
    from opsctl.local.cluster.lifecycle import down as take_down

    place = _folder(name, folder)
    with _progress() as show:
        ended = take_down(place, show)
    message(f"{place.name} is down ({ended} processes ended)" if ended else f"{place.name} was not up ({place})")


@command.command(name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@where_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...", required=True)
def execute(name: str | None, folder: Path | None, words: tuple[str, ...]) -> None:
    """Run a command with the cluster's environment."""
    from opsctl.run.state.chosen_cluster import find_cluster

    cluster = find_cluster(str(_folder(name, folder).absolute()))
    environment = {**os.environ, **cluster.additions(dict(os.environ))}
    sys.stdout.flush()
    try:
        os.execvpe(words[0], words, environment)
    except FileNotFoundError:
        message(f"opsctl: no command {words[0]!r} in PATH")
        sys.exit(127)
    except PermissionError:
        message(f"opsctl: {words[0]!r} is not executable")
        sys.exit(126)


@command.command()
@where_options
@json_option(clusters="list[opsctl.local.cluster.status.ClusterStatus]")
def status(name: str | None, folder: Path | None, as_json: bool) -> None:
    """Show daemons, nodes and jobs. Without --name and --folder, shows all clusters that have a name."""
    from opsctl.local.cluster.status import known_folders, status_of

    folders = known_folders() if name is None and folder is None else [_folder(name, folder)]
    found = [status_of(place) for place in folders]
    if as_json:
        print_json("clusters", found)
        return
    if not found:
        message("no local cluster: opsctl local-cluster up starts one")
    for one in found:
        show(f"{one.name}  {one.state}  {one.shape}  {one.folder}")
        if one.state == "down":
            continue
        show(f"  daemons {one.daemons_alive} of {one.daemons_expected}{_missing(one.daemons_missing)}")
        if one.problem:
            show(f"  {one.problem}")
        else:
            show(f"  nodes   {_counts(one.nodes_by_state) or 'none'}")
            show(f"  jobs    {_counts(one.jobs_by_state) or 'none'}")


def _missing(names: tuple[str, ...]) -> str:
    if not names:
        return ""
    return f", not running: {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {state.lower()}" for state, number in sorted(counts.items()))
