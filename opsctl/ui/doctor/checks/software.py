"""Python, its packages, programs, compilers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from opsctl.run.config.program import program_of
from opsctl.ui.doctor.check import Check, Result, Seen, SoftwareSeen, missing, ok, optional
from trainer.formats.distribution import FORMER_NAME, NAME, install_command, pip_command, version

_OLDEST = (3, 11)
_OF_TRAINER = ("torch", "deepspeed", "numpy", "safetensors", "tokenizers", "xxhash")


def _python(found: SoftwareSeen, _seen: Seen) -> Result | None:
    said = f"{'.'.join(map(str, found.python))} ({found.executable})"
    return (
        ok(said)
        if found.python[:2] >= _OLDEST
        else missing(f"{said} is older than 3.11", "load a newer Python's module")
    )


def _distribution(found: SoftwareSeen, _seen: Seen) -> Result | None:
    """Check for the other distribution: both have the same package names and overwrite each other's files."""
    if (former := found.former_version) is None:
        return ok(f"{NAME} {version()}")
    todo = f"{pip_command('uninstall')} {NAME} {FORMER_NAME}, then install this project again"
    said = f"a distribution {FORMER_NAME} {former} is installed too: another project, or this one of an early version"
    return missing(f"{said}; both have the package opsctl", todo)


def _trainer(found: SoftwareSeen, seen: Seen) -> Result | None:
    """With an environment script it is that one's Python that trains."""
    if seen.run is not None and seen.run.program is not None:
        return None
    lacking = [name for name in _OF_TRAINER if not found.packages[name]]
    if not lacking:
        return ok("torch, DeepSpeed and the rest are here")
    said, todo = f"{', '.join(lacking)} not installed in this Python", install_command("trainer")
    if seen.run is None or seen.run.run.environment is not None:
        return optional(f"{said}: converting and preparing data need them here", todo)
    return missing(f"{said}, and the run has no environment script", todo)


def _own_program(_tables: object, seen: Seen) -> Result | None:
    """Report what opsctl cannot do with a training program other than its own."""
    if seen.run is None:
        return None
    program = program_of(seen.run, Path())
    if program is None:
        return ok("opsctl's trainer")
    lacks = program.lacks()
    said = f"kind {program.kind.name}"
    return optional(f"{said}: {' '.join(lacks)}", "docs/your-trainer.md") if lacks else ok(said)


def _uv(_found: SoftwareSeen, seen: Seen) -> Result | None:
    table = None if seen.run is None else seen.run.environment
    return _program(seen, "uv", wanted=table is not None, todo=f"{pip_command('install')} uv")


def _compiler(_found: SoftwareSeen, seen: Seen) -> Result | None:
    return _program(seen, "g++", wanted=_compiles(seen), todo="load a compiler's module, or install g++")


def _nvcc(_found: SoftwareSeen, seen: Seen) -> Result | None:
    table = None if seen.run is None else seen.run.environment
    wanted = bool(table and table.architectures and table.extensions and not table.modules)
    return _program(seen, "nvcc", wanted=wanted, todo='load CUDA: modules = ["cuda"] under [environment]')


def _compiles(seen: Seen) -> bool:
    table = None if seen.run is None else seen.run.environment
    return bool(table and table.extensions and not table.modules)


def _program(seen: Seen, name: str, wanted: bool, todo: str) -> Result | None:
    if seen.software is None:
        return None
    path = seen.software.programs.get(name)
    if path is not None:
        return ok(path)
    return missing(f"{name} is not in PATH", todo) if wanted else optional(f"{name} is not in PATH", todo)


def _hub_client(found: SoftwareSeen, seen: Seen) -> Result | None:
    """Whatever reaches a repository: the client's own token is asked for where git is used too."""
    if found.packages["huggingface_hub"]:
        return ok("huggingface_hub is here")
    said, todo = "huggingface_hub is not installed", install_command("hub")
    return missing(f"{said}, and [hub] names a repository", todo) if seen.tables.get("hub") else optional(said, todo)


def _backup_extras(found: SoftwareSeen, seen: Seen) -> Result | None:
    wanted = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs"}
    schemes = {str(one).partition("://")[0] for one in _destinations(seen)}
    lacking = sorted({wanted[one] for one in schemes if one in wanted and not found.packages[wanted[one]]})
    if not schemes:
        return optional("nothing is backed up: the only copy is on one disk", 'to = ["..."] under [backup]')
    if lacking:
        todo = install_command(*({"s3fs": "s3", "gcsfs": "gcs"}[one] for one in lacking))
        return missing(f"{', '.join(lacking)} not installed, to which backups go", todo)
    return ok("the packages for the backup destinations are installed")


def _destinations(seen: Seen) -> Iterable[object]:
    to = seen.tables.get("backup", {}).get("to", ())
    return to if isinstance(to, list | tuple) else (to,)


CHECKS = (
    Check("distribution", "Is no other distribution installed that has the package opsctl?", _distribution, "software"),
    Check("python", "Is the Python that runs opsctl new enough?", _python, "software"),
    Check("program", "Does the run's own training program save when asked, and report progress?", _own_program),
    Check("trainer's packages", "Are torch, DeepSpeed and the others in the Python that trains?", _trainer, "software"),
    Check("hub's client", "Is huggingface_hub here? Needed where there is a [hub].", _hub_client, "software"),
    Check("uv", "Is uv here? Needed where it builds the environment.", _uv, "software"),
    Check(
        "compiler", "Is g++ here? Needed where extensions are compiled and no module brings one.", _compiler, "software"
    ),
    Check(
        "nvcc",
        "Is nvcc here? Needed where extensions are compiled for GPUs and no module brings it.",
        _nvcc,
        "software",
    ),
    Check("backups", "Is the run backed up, and what that needs installed?", _backup_extras, "software"),
)
