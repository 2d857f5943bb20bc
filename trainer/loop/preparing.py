"""All that a training needs beside its model: its checkpoint, the folder that it saves in, its data, its schedule.

What is refused soonest comes first: options, then the checkpoint, then the data.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainer.checkpoint.destination import (
    Destination,
    OwnLease,
    only_writer,
    open_destination,
    refuse_if_overtaken,
)
from trainer.checkpoint.into_engine import step_back
from trainer.checkpoint.memory import Memory, publish_from_memory
from trainer.core.console import complain
from trainer.core.files import HeldFolder, be_as_open_as_its_folder
from trainer.data.build import Datasets, build_datasets, vocab_size
from trainer.formats.attempt.error_file import write_error_file
from trainer.formats.checkpoint.changes import Identity
from trainer.formats.errors import SampleError
from trainer.loop.leaving import Leaving
from trainer.loop.resuming import Resumption, data_facts_everywhere, find_resumption, with_sample_order
from trainer.parallel.agreement import Refusal
from trainer.parallel.process_groups import Parallel
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.lengths import Lengths, only_evaluates
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.option_rules import ramp_errors
from trainer.recipe.options import Options, OptionsError


@dataclass(frozen=True)
class Prepared:
    """The parts that are known and open before the model is built."""

    vocabulary: Vocabulary
    identity: Identity
    resumption: Resumption
    lengths: Lengths
    datasets: Datasets
    destination: Destination | None  # None: nothing is saved


def prepare(
    options: Options, parallel: Parallel, leaving: Leaving, lease: OwnLease | None, held: ExitStack
) -> Prepared:
    """Find the checkpoint, open the folder to save in until `held` ends, build the datasets. Collective.

    Raises OptionsError, DataError, Refusal or CheckpointError, and LeavesEarly between two parts where the ranks agree
    to leave.
    """
    tokens = vocab_size(options)
    with _as_options_error():
        schedule = LearningRateSchedule.of(options)
        vocabulary = Vocabulary.of(tokens, options)
    identity = Identity.of(options, parallel.world_size, vocabulary, data_facts_everywhere(options))
    if keeps_snapshots(options):
        _publish_from_memory(options, lease)
    resumption = find_resumption(options, identity, schedule)
    progress = resumption.progress
    if resumption.found is None and only_evaluates(options):
        raise OptionsError(f"--load {options.load}: no checkpoint there that could be evaluated (--eval-only)")
    if wrong := ramp_errors(options, parallel.world_size, progress.consumed_train_samples):
        raise OptionsError(wrong[0])
    with _as_options_error():
        lengths = Lengths.of(options, progress, progress.consumed_valid_samples)
    destination = _opened(options, resumption, lease, held)
    leaving.look_while_building()
    datasets = build_datasets(
        options,
        0 if only_evaluates(options) else lengths.samples_to_read,
        lengths.valid_samples,
        lengths.test_samples,
        is_builder=parallel.rank == 0,
        barrier=dist.barrier,
    )
    leaving.look_while_building()
    identity, resumption = with_sample_order(options, identity, resumption, datasets.train)
    return Prepared(vocabulary, identity, resumption, lengths, datasets, destination)


def keeps_snapshots(options: Options) -> bool:
    """Return whether snapshots are kept in memory, from which a restart of the same training resumes."""
    return bool(options.snapshot_interval and not only_evaluates(options))


def _publish_from_memory(options: Options, lease: OwnLease | None) -> None:
    """Save what an earlier start in this job left in memory, if it is newer, and free that memory."""
    if not saves_where_it_loads(options):
        raise OptionsError("--snapshot-interval: a restart resumes from what it saves; give --save and --load alike")
    destination = Destination(HeldFolder(Path(options.save)), lease)
    with only_writer(destination):
        memory = Memory.of(destination)
        if not options.finetune and options.load_step is None:
            publish_from_memory(memory, destination)
        refuse_if_overtaken(lease)
        memory.remove()


def _opened(options: Options, resumption: Resumption, lease: OwnLease | None, held: ExitStack) -> Destination | None:
    """--save, which no other training writes to until `held` ends; None where nothing is saved."""
    if not options.save or only_evaluates(options):
        return None
    destination = Destination(HeldFolder(Path(options.save)), lease)
    held.enter_context(only_writer(destination))
    if resumption.fell_back is not None and saves_where_it_loads(options):
        step_back(destination, resumption.fell_back)
    open_destination(destination, resumption.progress.iteration)
    return destination


def saves_where_it_loads(options: Options) -> bool:
    """Return whether --save is the folder of --load, by any name."""
    return bool(options.load and options.save and Path(options.load).resolve() == Path(options.save).resolve())


@contextmanager
def _as_options_error() -> Iterator[None]:
    """Pure arithmetic refuses with ValueError; here that is about options."""
    try:
        yield
    except ValueError as error:
        raise OptionsError(str(error)) from None


#: Seconds that other ranks give the first one to print the same, and for an error that all ranks know.
_FIRST_RANK_S, _FIRST_RANK_KNOWS_S = 2.0, 30.0


def refuse(error: Exception) -> None:
    """Print in one line why this rank leaves, unless another rank has printed the same, and leave it for the launcher.

    Not collective: the others may be waiting for this rank elsewhere. The first rank prints what it knows. If it does
    not within seconds, the next rank that knows does; for a bad sample at once, since only its reader knows. No rank
    returns before it is printed, because at the first exit the launcher ends the others.
    """
    line = " ".join(str(error).split())
    try:
        if dist.is_initialized():
            _print_once(line, _wait_s(error))
        elif int(os.environ.get("RANK", "0")) == 0:
            complain(f"trainer: {line}")
        else:
            time.sleep(_FIRST_RANK_S)
    finally:
        leave_error_file(line)


def leave_error_file(line: str) -> None:
    """Write the reason to the file that torch's launcher reads, so that it is in the attempt's record too."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        try:
            write_error_file(Path(path), line, time.time())
            be_as_open_as_its_folder(Path(path))
        except OSError as error:
            complain(f"cannot write {path}: {error.strerror}")


def _wait_s(error: Exception) -> float:
    if isinstance(error, SampleError):
        return 0.0
    return _FIRST_RANK_KNOWS_S if isinstance(error, Refusal) else _FIRST_RANK_S


def _print_once(line: str, wait_s: float) -> None:
    """Print the line on the first rank that counts itself in the store. Other ranks wait for the first one."""
    store: Any = dist.distributed_c10d._get_default_store()
    key = f"refusal/{hashlib.blake2b(line.encode(), digest_size=8).hexdigest()}"
    with contextlib.suppress(RuntimeError):  # not in time
        if dist.get_rank() and wait_s:
            store.wait([key], timedelta(seconds=wait_s))
    try:
        is_printed = store.add(key, 1) > 1
    except RuntimeError:  # the store has gone with the first rank
        is_printed = False
    if not is_printed:
        complain(f"trainer: {line}")
    until = time.monotonic() + _FIRST_RANK_S
    with contextlib.suppress(RuntimeError):  # the first rank may hold the store, and leaves last
        while dist.get_rank() == 0 and store.add(key, 0) < dist.get_world_size() and time.monotonic() < until:
            time.sleep(0.02)
