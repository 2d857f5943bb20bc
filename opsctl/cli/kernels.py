"""`opsctl kernels`: operations that are compiled ahead of a training: build them, list them, check them."""

from __future__ import annotations

import os
from typing import Any

import click

from opsctl.cli.selection import Function, json_option, run_option

_arch_option = click.option("--arch", multiple=True, metavar="M.N...", help="GPUs by compute capability; 7.0 8.0 9.0.")
#: What follows the first word of --arch: an option of click's takes one.
_more_arch = click.argument("more_arch", nargs=-1, metavar="")
_here_option = click.option("--here", is_flag=True, help="Only what this machine's CPU and GPU take.")


def _which_options(function: Function) -> Function:
    _json_option = json_option(kernels="trainer.formats.attempt.kernels.KernelCache")
    return _arch_option(_more_arch(_here_option(_json_option(function))))


@click.group()
def command() -> None:
    """Operations compiled ahead of a training: C++ for CPUs, CUDA for GPUs, the data path.

    A training compiles nothing: it loads what was built of its own version, beside the same torch, and computes the
    rest by torch. $OPSCTL_KERNELS_CACHE names the folder, or several with colons between: all are looked into, the
    first is built into. Without it, it is opsctl/kernels in ~/.cache.
    """


@command.command("build")
@_which_options
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Compilers at once; as many as CPUs.")
def build(**options: Any) -> int:
    """Build missing kernels, for every level of this kind of CPU and for the named GPUs.

    Several nodes may start this at the same time: the first complete result is kept. Without a compiler for some
    kernels, a message names them, the rest is built, and the exit code is 1.
    """
    options["jobs"] = options["jobs"] or len(os.sched_getaffinity(0))
    return _run("build", **options)


@command.command("list")
@_which_options
def list_(**options: Any) -> int:
    """Show what there is of the present sources, and by which compiler."""
    return _run("list", **options)


@command.command("check")
@_which_options
def check(**options: Any) -> int:
    """Hold what there is to its sources and checksums, load it, and on a GPU run it; 1 when anything is amiss."""
    return _run("check", **options)


@command.command("measure")
@run_option
@click.option("--device", type=click.Choice(("cuda", "cpu")), help="[default: the GPU where there is one]")
@json_option(times="trainer.formats.attempt.kernels.KernelTimes")
def measure(run: str | None, device: str | None, as_json: bool) -> int:
    """Time each way that there is to compute each family of operations, here, and have trainings choose by it.

    On a node with a GPU: our kernels, torch, torch.compile and NVIDIA's apex where it is installed; on a CPU the C++
    operations and torch. At the sizes of a run that is named or at hand, else at some that are common. What is found
    lies beside the built kernels, for this kind of device and these versions.
    """
    from opsctl.cli import trainer_program

    words = trainer_program.option_words({"measure": True, "device": device, "json": as_json})
    if arguments := _trainer_arguments(run):
        words += ["--", *arguments]
    return trainer_program.run_trainer_program("trainer.kernels", words, needed=("torch",))


def _trainer_arguments(run: str | None) -> tuple[str, ...]:
    """Return the trainer arguments of the run, none without a run. Raises RunFileError for an invalid run."""
    from opsctl.core.errors import RunFileError, UsageError
    from opsctl.run.config.checks import check_run
    from opsctl.run.state.run_view import glance

    try:
        chosen = glance(run)
    except UsageError:
        if run is not None:
            raise
        return ()
    if chosen.loaded is None:
        raise RunFileError(chosen.problem)
    return check_run(chosen.loaded, files=False)[0].arguments


def _run(verb: str, *, arch: tuple[str, ...], more_arch: tuple[str, ...], **options: Any) -> int:
    from opsctl.cli.trainer_program import option_words, run_trainer_program

    words = [verb, *option_words({"arch": arch + more_arch, **options})]
    return run_trainer_program("trainer.kernels.native", words, needed=())
