"""All that a training needs beside its model: its checkpoint, the folder that it saves in, its data, its schedule.

What is refused soonest comes first: options, then the checkpoint, then the data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from trainer.checkpoint.destination import Destination, OwnLease, only_writer, open_destination
from trainer.checkpoint.into_engine import step_back
from trainer.core.console import complain
from trainer.core.held_folder import HeldFolder
from trainer.data.build import Datasets, build_datasets, vocab_size
from trainer.formats.checkpoint.changes import Identity
from trainer.loop.leaving import Leaving
from trainer.loop.resuming import Resumption, data_facts_everywhere, find_resumption, with_sample_order
from trainer.parallel.process_groups import Parallel
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.lengths import Lengths, only_evaluates
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.option_rules import ramp_errors
from trainer.recipe.options import Options, OptionsError


@dataclass(frozen=True)
class Prepared:
    """What is known and open before the model is built."""

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
        # Of the ranks of a node one speaks for all.
        say=complain if os.environ.get("LOCAL_RANK", "0") == "0" else lambda _: None,
    )
    leaving.look_while_building()
    identity, resumption = with_sample_order(options, identity, resumption, datasets.train)
    return Prepared(vocabulary, identity, resumption, lengths, datasets, destination)


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
    """Whether --save is the folder that --load is, by whatever name."""
    return bool(options.load and options.save and Path(options.load).resolve() == Path(options.save).resolve())


@contextmanager
def _as_options_error() -> Iterator[None]:
    """Pure arithmetic refuses with ValueError; here that is about options."""
    try:
        yield
    except ValueError as error:
        raise OptionsError(str(error)) from None
