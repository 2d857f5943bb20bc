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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__" and "--help" in sys.argv[1:]:  # before torch is imported, which takes seconds
    from trainer.recipe.option_help import help_text

    print(help_text())
    sys.exit(0)

from trainer.agreement import Refusal, from_first_rank, on_every_rank
from trainer.checkpoint.destination import (
    Destination,
    Overtaken,
    OwnLease,
    open_destination,
    refuse_if_overtaken,
)
from trainer.checkpoint.one_writer import only_writer
from trainer.checkpoint.step_back import step_back
from trainer.data.build import DataError, build_datasets, vocab_size
from trainer.energy.orders import Order
from trainer.energy.tracked import missing, tracker_of_node
from trainer.engine import Vocabulary, build_engine, configuration_notices, initialize, masks_notices
from trainer.files import make_folder, write_atomically
from trainer.formats.errors import CheckpointError
from trainer.formats.leave_lines import Reason, leave_line
from trainer.formats.log_lines import argument_lines, stamp
from trainer.formats.resumable import Identity
from trainer.held_folder import HeldFolder
from trainer.loop.batches import end_of_document_id, open_items
from trainer.loop.contents import LastLoss, contents_of
from trainer.loop.evaluate import Evaluations, evaluate
from trainer.loop.hard_end import HARD_END_AFTER_S, HardEnd
from trainer.loop.leaving import LeavesEarly, Leaving, LeavingSettings
from trainer.loop.log import Log
from trainer.loop.refusing import leave_error_file, refuse
from trainer.loop.replicas import ReplicaCheck, Replicas
from trainer.loop.resuming import (
    Resumption,
    data_facts_everywhere,
    find_resumption,
    load_into,
    progress_on_disk,
    with_sample_order,
)
from trainer.loop.save import Saves, beginner, saver
from trainer.loop.tensorboard import Curves, open_writer
from trainer.loop.train import Training, train
from trainer.parallel.process_groups import Parallel
from trainer.preload import STARTED_AT
from trainer.recipe.lengths import Lengths
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.option_rules import ramp_errors
from trainer.recipe.options import Options, OptionsError, parse
from trainer.recipe.save_schedule import SaveSchedule
from trainer.recipe.schedule import LearningRateSchedule
from trainer.recipe.sizes import (
    HARDWARE_PASSES,
    MODEL_PASSES,
    parameters,
    parameters_outside_embeddings,
    tflops_per_gpu,
)
from trainer.say import say

import torch.distributed as dist  # isort: skip  # the engine's modules have imported torch the quick way


def main(arguments: list[str] | None = None) -> int:
    """Train; the exit status. Every rank calls it."""
    words = sys.argv[1:] if arguments is None else arguments
    hard_end = HardEnd(leave_error_file)
    try:
        options = parse(words, int(os.environ.get("WORLD_SIZE", "1")), consumed_samples=None)
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
    leaving = Leaving(_leaving_settings(options), parallel.device, STARTED_AT)
    leaving.listen()
    at_once = leaving.reason(0, steps_done=0)
    if at_once is not None:  # before anything is built: a queue of tasks drains in seconds
        reason, line = at_once
        _say(parallel, line)
        progress = progress_on_disk(options)
        leaving.announce(reason, progress.iteration)
        leaving.report(reason, progress)
        return
    lease = OwnLease(Path(options.lease_path), options.lease_number) if options.lease_path else None
    try:
        refuse_if_overtaken(lease)
    except Overtaken as error:
        _say(parallel, leave_line(Reason.OVERTAKEN, error))
        leaving.report(Reason.OVERTAKEN, progress_on_disk(options))
        return
    _say(parallel, argument_lines({**options, "world_size": parallel.world_size}))
    notices = (*options.notices, *configuration_notices(options))
    for notice in (*notices, *masks_notices(options.attention_dropout, parallel.device)):
        _say(parallel, notice)
    _keep_arguments(options)
    flush_energy = _measured(options, held)
    _say(parallel, stamp("after megatron is initialized"))
    try:
        training = _build(options, parallel, leaving, lease, hard_end, held, flush_energy)
    except LeavesEarly as early:  # nothing is trained yet that would have to be saved
        _say(parallel, early.line)
        progress = progress_on_disk(options)
        leaving.announce(early.reason, progress.iteration)
        leaving.report(early.reason, progress)
        return
    try:
        reason = train(training)
    except Overtaken as error:
        reason = Reason.OVERTAKEN
        _say(parallel, leave_line(reason, error))
    leaving.report(reason, training.progress)


def _build(
    options: Options,
    parallel: Parallel,
    leaving: Leaving,
    lease: OwnLease | None,
    hard_end: HardEnd,
    held: ExitStack,
    flush_energy: Callable[[], None],
) -> Training:
    """What is refused soonest first: options, checkpoint, data; then the model, and what the checkpoint has of it.

    Raises LeavesEarly between two parts where the ranks agree to leave.
    """
    tokens = vocab_size(options)
    with _as_options_error():
        schedule = LearningRateSchedule.of(options)
        vocabulary = Vocabulary.of(tokens, options)
    identity = Identity.of(options, parallel.world_size, vocabulary, data_facts_everywhere(options))
    resumption = find_resumption(options, identity, schedule)
    if wrong := ramp_errors(options, parallel.world_size, resumption.progress.consumed_train_samples):
        raise OptionsError(wrong[0])
    with _as_options_error():
        wanted = Lengths.of(options, resumption.progress, resumption.progress.consumed_valid_samples)
    destination = Destination(HeldFolder(Path(options.save)), lease) if options.save else None
    if destination is not None:
        held.enter_context(only_writer(destination))
        if resumption.fell_back is not None and _saves_where_it_loads(options):
            step_back(destination, resumption.fell_back)
        open_destination(destination, resumption.progress.iteration)
    leaving.look_while_building()
    datasets = build_datasets(
        options,
        wanted.samples_to_read,
        wanted.valid_samples,
        wanted.test_samples,
        is_builder=parallel.rank == 0,
        barrier=dist.barrier,
    )
    leaving.look_while_building()
    identity, resumption = with_sample_order(options, identity, resumption, datasets.train)
    for line in resumption.changed():
        _say(parallel, line)
    end_of_document = end_of_document_id(options)
    _say(parallel, stamp("after dataloaders are built"))
    engine = build_engine(options, parallel, vocabulary)
    leaving.look_while_building()
    load_into(engine, resumption, options)
    _say(parallel, stamp("after model, optimizer, and learning rate scheduler are built"))
    shape = ModelShape.of(options, vocabulary)
    _say_size(options, parallel, shape)
    tell = say if parallel.rank == parallel.world_size - 1 else _keep_quiet  # the last rank has the loss first
    curves = _curves(options, parallel, shape)
    of_model: dict[str, Any] = {"options": options, "parallel": parallel, "vocab_size": vocabulary.tokens}
    of_model["end_of_document"] = end_of_document
    evaluated = partial(evaluate, engine, **of_model, has_to_end=leaving.has_to_end)
    passes = HARDWARE_PASSES if _recomputes(options) else MODEL_PASSES

    def tflops(samples: int, seconds: float) -> float:
        return tflops_per_gpu(shape, samples, options.seq_length, seconds, parallel.world_size, passes)

    loss = LastLoss()
    observers = [
        loss,
        Log(options, wanted.train_iterations, tflops, tell, curves),
        curves,
        Evaluations(options, datasets, evaluated, tell, curves),
    ]
    is_due = SaveSchedule.of(options).is_due
    if options.check_replicas_interval and parallel.world_size > 1:
        replicas = Replicas(engine, parallel, shape.layers)
        observers.append(ReplicaCheck(replicas, options.check_replicas_interval, is_due))
    if destination is not None:
        contents = contents_of(options, identity, resumption.schedule, resumption.history, loss)
        whole = engine, destination, contents, not options.no_save_optim
        begin = beginner(*whole) if options.async_save else None
        saved = _saved_iteration(options, resumption)
        ends = leaving.has_to_end
        observers.append(Saves(saver(*whole), is_due, saved, tell, curves, begin, ends, flush_energy))
    return Training(
        engine=engine,
        parallel=parallel,
        lengths=wanted,
        schedule=resumption.schedule,
        sequence_length=options.seq_length,
        progress=resumption.progress,
        leaving=leaving,
        open_items=partial(open_items, datasets.train, **of_model, for_training=True),
        observers=observers,
        tell=say if parallel.rank == 0 else _keep_quiet,
        hard_end=hard_end,
        last_save_s=_last_save_s(options),
    )


def _last_save_s(options: Options) -> float:
    """Seconds that the save before leaving may take: the margin that is left for it, or as long as a rank waits."""
    margin, minutes = options.exit_margin_in_mins, float(options.distributed_timeout_minutes)
    return minutes * 60 if margin is None else max(margin * 60, HARD_END_AFTER_S)


def _saved_iteration(options: Options, resumption: Resumption) -> int | None:
    """The iteration that --save's latest checkpoint has already: the one that was loaded from there."""
    return resumption.saved_iteration if _saves_where_it_loads(options) and not options.finetune else None


def _saves_where_it_loads(options: Options) -> bool:
    return bool(options.load and options.save and Path(options.load).resolve() == Path(options.save).resolve())


def _recomputes(options: Options) -> bool:
    return bool(options.checkpoint_activations or options.deepspeed_activation_checkpointing)


@contextmanager
def _as_options_error() -> Iterator[None]:
    """Pure arithmetic refuses with ValueError; here that is about options."""
    try:
        yield
    except ValueError as error:
        raise OptionsError(str(error)) from None


def _leaving_settings(options: Options) -> LeavingSettings:
    def path(given: str | None) -> Path | None:
        return Path(given) if given else None

    return LeavingSettings(
        kill_switch_path=path(options.kill_switch_path),
        stop_request_path=path(options.stop_request_path),
        save_request_path=path(options.save_request_path),
        exit_report_path=path(options.exit_report_path),
        exit_duration_minutes=options.exit_duration_in_mins,
        exit_interval=options.exit_interval,
        exit_after_iterations=options.exit_after_iters,
        exit_samples=options.exit_samples,
    )


def _curves(options: Options, parallel: Parallel, shape: ModelShape) -> Curves:
    writes = options.tensorboard_dir and parallel.rank == parallel.world_size - 1
    return Curves(
        on_every_rank(lambda: open_writer(options) if writes else None, (OptionsError,)),
        options,
        parallel.world_size,
        parallel.data_size,
        flops_per_sample=6.0 * parameters_outside_embeddings(shape) * options.seq_length,
    )


def _measured(options: Options, held: ExitStack) -> Callable[[], None]:
    """Measure this node's energy until `held` ends; what writes it down meanwhile. Nothing where nobody asks for it."""
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
    """What one does whose node's energy another rank, or nobody, measures."""


def _keep_quiet(_line: str) -> None:
    """What a rank prints that leaves it to another one."""


def _say(parallel: Parallel, line: str) -> None:
    if parallel.rank == 0:
        say(line)


def _say_size(options: Options, parallel: Parallel, shape: ModelShape) -> None:
    _say(parallel, f"{parameters(shape):,} parameters on {parallel.world_size} ranks: {parallel.layout}")
    if _recomputes(options):
        counted = "hardware FLOPs, with recomputed activations; model FLOPs are 3/4 of them"
    else:
        counted = "model and hardware FLOPs, which are equal as nothing is recomputed"
    _say(parallel, f"TFLOPs in the log are each rank's {counted}")


def _keep_arguments(options: Options) -> None:
    """A copy of the arguments in --log-path, as Megatron-DeepSpeed leaves one."""
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
