"""Pre-training a GPT: `python -m trainer.pretrain_gpt --num-layers ...`, alone, through torchrun or through
trainer.launch.

Exit status: 0 when the training finished or all ranks agreed to leave, 2 for options or data that cannot be (one line),
1 for a checkpoint that cannot be read or written and for every failure.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

if __name__ == "__main__" and "--help" in sys.argv[1:]:  # before torch is imported, which takes seconds
    from trainer.recipe.option_help import help_text

    print(help_text())
    sys.exit(0)

from trainer.checkpoint.destination import Overtaken, OwnLease, refuse_if_overtaken
from trainer.core.console import say, say_if
from trainer.core.files import make_folder, write_atomically
from trainer.core.preload import STARTED_AT
from trainer.engine.build import configuration_notices, initialize, masks_notices
from trainer.formats.errors import CheckpointError, DataError
from trainer.formats.logs.guard_lines import Reason, leave_line
from trainer.formats.logs.log_lines import argument_lines, stamp
from trainer.kernels.choice import kernel_lines
from trainer.launcher.energy.sampler import Order, missing, tracker_of_node
from trainer.loop.assembly import Process, assemble
from trainer.loop.leaving import HardEnd, LeavesEarly, Leaving
from trainer.loop.preparing import leave_error_file, refuse
from trainer.loop.resuming import progress_on_disk
from trainer.loop.train import evaluate_only, train
from trainer.parallel.agreement import Refusal, from_first_rank, on_every_rank
from trainer.parallel.process_groups import Parallel
from trainer.recipe.lengths import only_evaluates
from trainer.recipe.options import Options, OptionsError, parse
from trainer.recipe.schedule_rules import schedule_notices

import torch.distributed as dist  # isort: skip  # the engine's modules have imported torch the quick way


def main(arguments: list[str] | None = None) -> int:
    """Train; the exit status. Every rank calls it."""
    words = sys.argv[1:] if arguments is None else arguments
    hard_end = HardEnd(leave_error_file)
    try:
        options = parse(words, int(os.environ.get("WORLD_SIZE", "1")), consumed_samples=None)
        if only_evaluates(options):  # weights alone count, so it is all one what the checkpoint has besides
            options = options.replace(no_load_optim=True, no_load_rng=True)
        with ExitStack() as held:
            _run(options, initialize(options), hard_end, held)
        hard_end.start()
        status = 0
    except (OptionsError, DataError, Refusal, CheckpointError) as error:
        hard_end.start()
        refuse(error)
        status = 2 if isinstance(error, (OptionsError, DataError)) else 1
    if dist.is_initialized():
        if status == 0:
            dist.barrier()  # the first rank holds the store, and must not be the first to go
        if status == 0 or dist.get_backend() == "gloo":  # NCCL would wait for ranks that wait for this one
            dist.destroy_process_group()
    hard_end.cancel()
    return status


def _run(options: Options, parallel: Parallel, hard_end: HardEnd, held: ExitStack) -> None:
    """Everything between joining the process group and leaving it. held: what is given up at its end."""
    tell = say_if(parallel.rank == 0)
    leaving = Leaving(options, parallel.device, STARTED_AT)
    leaving.listen()
    at_once = leaving.reason(0, steps_done=0)
    if at_once is not None:  # before anything is built: a queue of tasks drains in seconds
        reason, line = at_once
        tell(line)
        progress = progress_on_disk(options)
        leaving.announce(reason, progress.iteration)
        leaving.report(reason, progress)
        return
    lease = OwnLease(Path(options.lease_path), options.lease_number) if options.lease_path else None
    try:
        refuse_if_overtaken(lease)
    except Overtaken as error:
        tell(leave_line(Reason.OVERTAKEN, error))
        leaving.report(Reason.OVERTAKEN, progress_on_disk(options))
        return
    tell(argument_lines({**options, "world_size": parallel.world_size}))
    notices = (*options.notices, *configuration_notices(options), *schedule_notices(options))
    for notice in (*notices, *masks_notices(options.attention_dropout, parallel.device)):
        tell(notice)
    for line in kernel_lines(parallel.operations):
        tell(line)
    _keep_arguments(options)
    flush_energy = _measured(options, held)
    tell(stamp("after megatron is initialized"))
    try:
        training = assemble(options, Process(parallel, leaving, lease, hard_end, held, flush_energy))
    except LeavesEarly as early:  # nothing is trained yet that would have to be saved
        tell(early.line)
        progress = progress_on_disk(options)
        leaving.announce(early.reason, progress.iteration)
        leaving.report(early.reason, progress)
        return
    try:
        reason = evaluate_only(training) if only_evaluates(options) else train(training)
    except Overtaken as error:
        reason = Reason.OVERTAKEN
        tell(leave_line(reason, error))
    leaving.report(reason, training.progress)


def _measured(options: Options, held: ExitStack) -> Callable[[], None]:
    """Measure this node's energy until `held` ends, if asked; return a function that records it meanwhile."""
    if not options.codecarbon_dir:
        return _do_nothing
    folder = Path(options.codecarbon_dir)
    on_every_rank(lambda: _refuse_unmeasured(folder), (OptionsError,))
    if int(os.environ.get("LOCAL_RANK", "0")):
        return _do_nothing
    order = Order(
        folder=str(folder.absolute()),
        country=options.carbon_country,
        region=options.carbon_region,
        intensity_g_per_kwh=options.carbon_intensity_g_per_kwh,
    )
    return held.enter_context(tracker_of_node(order, say))


def _refuse_unmeasured(folder: Path) -> None:
    if wrong := missing():
        raise OptionsError(f"--codecarbon-dir: {wrong}")
    try:
        make_folder(folder)
    except OSError as error:
        raise OptionsError(f"--codecarbon-dir {folder}: {error.strerror}") from None


def _do_nothing() -> None:
    """Do nothing: the node's energy is measured by another rank, or not at all."""


def _keep_arguments(options: Options) -> None:
    """Write a copy of the arguments to --log-path, as Megatron-DeepSpeed does."""
    if options.log_path:
        from_first_rank(lambda: _write_arguments(Path(options.log_path), options), (OptionsError,))


def _write_arguments(folder: Path, options: Options) -> None:
    try:
        make_folder(folder)
        name = f"args_{time.strftime('%Y-%m-%dT%H_%M_%S')}.txt"
        write_atomically(folder / name, argument_lines(options) + "\n")
    except OSError as error:
        raise OptionsError(f"--log-path {folder}: {error.strerror}") from None


def _end(status: int) -> None:
    """End this process now. Exit handlers of libraries have kept finished jobs alive for a quarter of an hour."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    from torch.distributed.elastic.multiprocessing.errors import record

    try:
        _end(record(main)() or 0)
    except Exception:  # out of memory, a lost connection: no exit handler may keep this rank and its node
        traceback.print_exc()
        _end(1)
