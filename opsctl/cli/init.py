"""`opsctl init`: a new run folder from a shipped example."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import click

DEFAULT_EXAMPLE = "demo"


@click.command(name="init")
@click.argument("name")
@click.option(
    "--from",
    "example",
    metavar="EXAMPLE",
    help="demo, llama-1B, tr1-13B, tr11-176B-ml, tr11d-760M-ml, setup-test-n2 [default: demo]; with --rehearsal a run.",
)
@click.option("--rehearsal", is_flag=True, help="The small twin of a run, on two nodes, to try a change with.")
def command(name: str, example: str | None, rehearsal: bool) -> None:
    """Make the folder NAME with a run file, from an example or as the rehearsal of a run.

    An example's own name implies it: `opsctl init tr11-176B-ml`. A rehearsal has its own name, output folder and kill
    switch; sizes and lengths are scaled, which is said, and everything else is the run's.
    """
    folder, run_name = _wanted_folder(name)
    if rehearsal:
        from opsctl.cli.rehearsal import check_rehearsal, rehearsal_text

        _make(folder, run_name, rehearsal_text(example, run_name), check_rehearsal)
        _say_how_to_rehearse(folder)
        return
    examples = _examples()
    source = _chosen(examples, run_name, example)
    _make(folder, run_name, with_run_name(source.read_text(), run_name))
    _say_what_next(folder, source.stem)


def _make(folder: Path, run_name: str, text: str, check: Callable[[Path], None] | None = None) -> None:
    """The folder with the run file, where `check` lets that be. Raises OpsctlError where anything is already."""
    from opsctl.errors import OpsctlError
    from opsctl.records.locate import RUN_FILE_NAME, remember_run
    from opsctl.records.state_files import fsync_folder, write_atomically

    if os.path.lexists(folder):
        raise OpsctlError(f"{folder} already exists: choose another name, or edit {folder / RUN_FILE_NAME}")
    # Made beside and renamed, so that no half-made run is ever found under the name.
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        beside.mkdir(parents=True)
        write_atomically(beside, beside / RUN_FILE_NAME, text)
        if check is not None:
            check(beside / RUN_FILE_NAME)
        beside.rename(folder)
        fsync_folder(folder.parent, folder.parent)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    remember_run(run_name, folder / RUN_FILE_NAME)


def _say_how_to_rehearse(folder: Path) -> None:
    from opsctl.output import message, show
    from opsctl.records.locate import RUN_FILE_NAME

    show(str(folder / RUN_FILE_NAME))
    message("next:")
    for step in (f"cd {shlex.quote(os.path.relpath(folder))}", "opsctl plan", "opsctl submit"):
        message(f"  {step}")


def with_run_name(text: str, name: str) -> str:
    """The example's text with its run called `name`; everything else, comments too, stays."""
    renamed, count = re.subn(r'^name = "[^"]*"', f'name = "{name}"', text, count=1, flags=re.MULTILINE)
    assert count == 1, "an example names its run"
    return renamed


def _wanted_folder(name: str) -> tuple[Path, str]:
    """The folder to make and the run's name, its last part. Raises UsageError."""
    from opsctl.errors import UsageError
    from opsctl.runs.values import RUN_NAME, RUN_NAME_RULE

    folder = Path(os.path.abspath(name))  # noqa: PTH100 - links stay as written
    run_name = name.rstrip("/").rpartition("/")[2]
    if not RUN_NAME.fullmatch(run_name):
        raise UsageError(f"{run_name!r} cannot name a run: allowed are {RUN_NAME_RULE}")
    if not folder.parent.is_dir():
        raise UsageError(f"no folder {str(folder.parent)!r} to make the run in: make it first")
    return folder, run_name


def _examples() -> dict[str, Path]:
    from opsctl.shipped import templates_folder

    return {path.stem: path for path in sorted((templates_folder() / "examples").glob("*.toml"))}


def _chosen(examples: dict[str, Path], name: str, example: str | None) -> Path:
    from opsctl.errors import UsageError

    wanted = example or (name if name in examples else DEFAULT_EXAMPLE)
    if wanted not in examples:
        near = sorted((one for one in examples if one.startswith(wanted)), key=len)[:1] or difflib.get_close_matches(
            wanted, examples, 1, 0.4
        )
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"no example {wanted!r}{hint} (there are {', '.join(examples)})")
    return examples[wanted]


def _say_what_next(folder: Path, example: str) -> None:
    """The run file's path on stdout; the next commands, whole, on stderr."""
    from opsctl.cli.local_cluster import DEFAULT_NAME
    from opsctl.output import message, show
    from opsctl.records.locate import RUN_FILE_NAME

    show(str(folder / RUN_FILE_NAME))
    steps = [("", f"cd {shlex.quote(os.path.relpath(folder))}")]
    if example == "demo":
        steps += [
            ("a real Slurm on this machine", "opsctl local-cluster up --nodes 4 --gpus 2"),
            ("a corpus: the Python standard library's own sources", _PREPARE),
        ]
    else:
        steps.append(("paths, account and partition of your cluster", "${EDITOR:-vi} run.toml"))
    cluster = f" --cluster {DEFAULT_NAME}" if example == "demo" else ""
    steps += [
        ("what it comes to, and what is missing", "opsctl plan"),
        ("a chain of three tasks, one at a time", f"opsctl submit --array 1-3%1{cluster}"),
    ]
    message("next:")
    for why, step in steps:
        if why:
            message(f"  # {why}")
        message(f"  {step}")


_PREPARE = (
    "opsctl data prepare \"$(python3 -c 'import sysconfig; print(sysconfig.get_path(\"stdlib\"))')\" --include '*.py' "
    "--exclude test --exclude tests --exclude idlelib --exclude '*-packages' "
    "--output-prefix data/corpus --vocab-size 1024"
)
