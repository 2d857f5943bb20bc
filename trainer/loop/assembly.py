"""A training put together: the model, what the checkpoint has of it, and what is done after each of its steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainer.checkpoint.destination import OwnLease
from trainer.core.console import say_if
from trainer.engine.build import PipelineEngine, build_engine, replica_loss
from trainer.formats.checkpoint.history import Progress
from trainer.formats.logs.log_lines import stamp
from trainer.loop.batches import end_of_document_id, open_items
from trainer.loop.evaluate import Evaluations, evaluate
from trainer.loop.finite import FiniteCheck
from trainer.loop.guarding import Drill, Guarding, RollingBack
from trainer.loop.leaving import HARD_END_AFTER_S, HardEnd, Leaving
from trainer.loop.log import Log, OwnTime, sampler_pipe, size_lines, throughput_of
from trainer.loop.observer import Observer
from trainer.loop.preparing import Prepared, keeps_snapshots, prepare, saves_where_it_loads
from trainer.loop.replicas import ReplicaCheck, Replicas
from trainer.loop.resuming import LastLoss, Resumption, contents_of, load_into
from trainer.loop.save import Saves, beginner, saver
from trainer.loop.snapshots import open_snapshots
from trainer.loop.tensorboard import Curves, open_writers
from trainer.loop.train import Training
from trainer.parallel.agreement import on_every_rank
from trainer.parallel.process_groups import Parallel
from trainer.recipe.lengths import only_evaluates
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options, OptionsError
from trainer.recipe.save_schedule import SaveSchedule
from trainer.recipe.schedule import SkippedIterations, shown_iterations
from trainer.recipe.sizes import parameters_outside_embeddings
from trainer.recipe.spike_guard import SpikeDrill, SpikeGuard


@dataclass(frozen=True)
class Process:
    """The parts of a rank that exist before the training."""

    parallel: Parallel
    leaving: Leaving
    lease: OwnLease | None
    hard_end: HardEnd
    held: ExitStack  # what is given up when the process ends
    flush_energy: Callable[[], None]  # writes down what has been measured till now


def assemble(options: Options, process: Process) -> Training:
    """Load and prepare the training of `options`. Collective.

    Raises OptionsError, DataError, Refusal or CheckpointError for what is impossible, and LeavesEarly between two parts
    if the ranks agree to leave.
    """
    parallel, leaving = process.parallel, process.leaving
    tell = say_if(parallel.rank == 0)
    prepared = prepare(options, parallel, leaving, process.lease, process.held)
    resumption = prepared.resumption
    for line in resumption.changed():
        tell(line)
    of_model: dict[str, Any] = {"options": options, "parallel": parallel, "vocab_size": prepared.vocabulary.tokens}
    of_model["end_of_document"] = end_of_document_id(options)
    tell(stamp("after dataloaders are built"))
    engine = build_engine(options, parallel, prepared.vocabulary, draws_weights=resumption.found is None)
    leaving.look_while_building()
    load_into(engine, resumption, options)
    tell(stamp("after model, optimizer, and learning rate scheduler are built"))
    guarding = _guarding(options, engine, resumption, tell)
    observers = _observers(options, process, prepared, engine, guarding, of_model)
    drill, rolling_back = SpikeDrill.of(options), None
    if prepared.destination is not None:
        to_save = prepared.destination, prepared.identity
        rolling_back = RollingBack(engine, *to_save, guarding, resumption.progress, observers, tell)
    return Training(
        engine=engine,
        parallel=parallel,
        lengths=prepared.lengths,
        schedule=resumption.schedule,
        sequence_length=options.seq_length,
        progress=resumption.progress,
        leaving=leaving,
        open_items=partial(open_items, prepared.datasets.train, **of_model, for_training=True),
        observers=observers,
        tell=tell,
        guarding=guarding,
        hard_end=process.hard_end,
        last_save_s=_last_save_s(options),
        most_skipped=options.max_skipped_iterations,
        skipped=SkippedIterations.of(options),
        shown=shown_iterations(options),
        rolling_back=rolling_back,
        drill=Drill(drill, engine.module.loss_fn, parallel.data_rank == 0, tell) if drill else None,
    )


def _observers(
    options: Options,
    process: Process,
    prepared: Prepared,
    engine: PipelineEngine,
    guarding: Guarding,
    of_model: dict[str, Any],
) -> list[Observer]:
    """Return the observers of each step, in this order: log, curves, evaluation, comparison of replicas, save."""
    parallel, resumption, leaving = process.parallel, prepared.resumption, process.leaving
    shape = ModelShape.of(options, prepared.vocabulary)
    throughput = throughput_of(options, parallel, shape)
    for line in size_lines(parallel, throughput):
        say_if(parallel.rank == 0)(line)
    tell = say_if(parallel.rank == parallel.world_size - 1)  # the last rank has the loss first
    continues = resumption.found is not None and resumption.start.kind != "finetuned" and not only_evaluates(options)
    curves = _curves(options, parallel, shape, resumption.progress if continues else None)
    evaluated = partial(evaluate, engine, **of_model, has_to_end=leaving.has_to_end)
    loss = LastLoss()
    observers: list[Observer] = [
        loss,
        Log(options, prepared.lengths.train_iterations, throughput.of, tell, curves),
        curves,
        Evaluations(options, prepared.datasets, evaluated, tell, curves),
    ]
    if (pipe := sampler_pipe()) is not None:
        observers.insert(0, OwnTime(engine, parallel, pipe))
    is_due: Callable[[int], bool] = SaveSchedule.of(options).is_due
    if not options.save_non_finite:
        is_due = loss.postponing(is_due)
    if options.check_replicas_interval and parallel.world_size > 1:
        replicas = Replicas(engine, parallel, shape)
        observers.append(ReplicaCheck(replicas, options.check_replicas_interval, is_due))
    if prepared.destination is not None:
        history, kept = resumption.history, guarding.kept
        check = FiniteCheck(engine, shape, loss)

        def mark() -> str | None:
            found = check() if options.save_non_finite else None
            return found.why if found else None

        contents = contents_of(options, prepared.identity, resumption.schedule, history, loss, kept, mark)
        whole = engine, prepared.destination, contents, not options.no_save_optim
        begin = beginner(*whole) if options.async_save else None
        saves_there = saves_where_it_loads(options) and not options.finetune
        saved, ends = resumption.saved_iteration if saves_there else None, leaving.has_to_end

        def when_saved() -> None:
            leaving.look_again()
            process.flush_energy()

        saves = Saves(
            saver(*whole),
            is_due,
            saved,
            tell,
            curves,
            begin,
            ends,
            when_saved,
            **({} if options.save_non_finite else {"not_finite": check}),
            folder=str(prepared.destination.folder.path),
            is_end=prepared.lengths.end.is_reached,
        )
        observers.append(saves)
        if keeps_snapshots(options):
            of_snapshot = contents_of(options, prepared.identity, resumption.schedule, history, loss, kept)
            interval, with_optimizer = options.snapshot_interval, not options.no_save_optim
            observers.append(open_snapshots(engine, prepared.destination, interval, of_snapshot, with_optimizer, tell))
    return observers


def _guarding(
    options: Options, engine: PipelineEngine, resumption: Resumption, tell: Callable[[str], None]
) -> Guarding:
    """Return the spike guard with its checkpoint's memory; without it if finetuning counts iterations from 0."""
    of_checkpoint = None
    if resumption.found is not None and resumption.start.kind != "finetuned":
        of_checkpoint = resumption.found.manifest.spike_guard
    exactly = options.deterministic or engine.device.type == "cpu"
    return Guarding(SpikeGuard.of(options), of_checkpoint, partial(replica_loss, engine), tell, exactly)


def _curves(options: Options, parallel: Parallel, shape: ModelShape, continued_from: Progress | None) -> Curves:
    writes = parallel.rank == parallel.world_size - 1
    return Curves(
        on_every_rank(lambda: open_writers(options, continued_from) if writes else (), (OptionsError,)),
        options,
        parallel.world_size,
        parallel.data_size,
        flops_per_sample=6.0 * parameters_outside_embeddings(shape) * options.seq_length,
    )


def _last_save_s(options: Options) -> float:
    """Seconds that the save before leaving may take: the margin that is left for it, or as long as a rank waits."""
    margin, minutes = options.exit_margin_in_mins, float(options.distributed_timeout_minutes)
    return minutes * 60 if margin is None else max(margin * 60, HARD_END_AFTER_S)
