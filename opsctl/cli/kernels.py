"""`opsctl kernels`: operations that are compiled ahead of a training: build them, list them, check them."""

from __future__ import annotations

import os
from typing import Any

import click

from opsctl.cli.selection import Function, json_option

_arch_option = click.option(
    "--arch", multiple=True, metavar="M.N...", help="Compute capabilities of the GPUs, such as 7.0 8.0 9.0."
)
#: What follows the first word of --arch: an option of click's takes one.
_more_arch = click.argument("more_arch", nargs=-1, metavar="")
_here_option = click.option("--here", is_flag=True, help="Only kernels for this machine's CPU and GPU.")


def _which_options(function: Function) -> Function:
    _json_option = json_option(kernels="trainer.formats.attempt.kernels.KernelCache")
    return _arch_option(_more_arch(_here_option(_json_option(function))))


@click.group()
def command() -> None:
    """Compile operations before a training: C++ for CPUs, CUDA for GPUs.

    A training compiles nothing: it loads kernels that match its versions of opsctl and torch. Without such a kernel, an
    operation uses torch. $OPSCTL_KERNELS_CACHE names the folder [default: ~/.cache/opsctl/kernels]. It may name
    several, separated by colons; new kernels are built into the first.
    """


@command.command("build")
@_which_options
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of compilers that run at the same time [default: one per core].",
)
def build(**options: Any) -> int:
    """Build missing kernels for CPUs and the named GPUs.

    Several nodes may run this at the same time: the first complete result is kept. If a compiler is missing, the
    kernels that need it are listed, the others are built, and the exit code is 1.
    """
    options["jobs"] = options["jobs"] or len(os.sched_getaffinity(0))
    return _run("build", **options)


@command.command("list")
@_which_options
def list_(**options: Any) -> int:
    """List the kernels that are built, and their compilers."""
    return _run("list", **options)


@command.command("check")
@_which_options
def check(**options: Any) -> int:
    """Verify and load the built kernels; on a GPU run them.

    Compares them with their sources and checksums. Exits 1 on any problem.
    """
    return _run("check", **options)


def _run(verb: str, *, arch: tuple[str, ...], more_arch: tuple[str, ...], **options: Any) -> int:
    from opsctl.cli.trainer_program import option_words, run_trainer_program

    words = [verb, *option_words({"arch": arch + more_arch, **options})]
    return run_trainer_program("trainer.kernels.native", words, needed=())
