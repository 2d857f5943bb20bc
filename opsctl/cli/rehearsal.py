"""The run file of `opsctl init --rehearsal`: made from a run's, fully checked, with a message for each scaled value."""

from __future__ import annotations

from pathlib import Path

import click


def rehearsal_text(chosen: str | None, name: str) -> str:
    """Return the twin, called `name`, of the run that `chosen` means. Raises RunFileError if none fits, UsageError."""
    from opsctl.core.errors import RunFileError
    from opsctl.core.output import message
    from opsctl.run.config.load import expanded_file, load_run_file
    from opsctl.run.config.locate import locate_run_file
    from opsctl.run.init.rehearsal import twin_of

    if chosen is None:
        raise click.UsageError("--rehearsal needs a run: --from RUN")
    loaded = load_run_file(locate_run_file(chosen))
    if loaded.file.run.rehearses is not None:
        raise RunFileError(f"{loaded.path} is a rehearsal itself, of {loaded.file.run.rehearses}: name that")
    twin = twin_of(expanded_file(loaded), str(loaded.path), name)
    message(f"{name}: as {loaded.path}, but scaled, to what fits on two nodes in half an hour:")
    for line in twin.scaled:
        message(f"  {line}")
    return twin.text


def check_rehearsal(run_file: Path) -> None:
    """Hold the twin's run file to all checks but for the files that it names. Raises RunFileError."""
    from opsctl.core.errors import RunFileError
    from opsctl.run.config.checks import find_problems
    from opsctl.run.config.load import load_run_file

    found = find_problems(load_run_file(run_file), files=False)
    if found.problems:
        raise RunFileError(
            f"no rehearsal was made, because it could not run: {found.problems[0]}: fix that in the run first"
        )
