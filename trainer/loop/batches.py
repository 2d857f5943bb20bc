"""Micro-batches as the engine takes them, from the datasets."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.core.console import say
from trainer.data.build import DataError, Dataset
from trainer.data.micro_batches import MicroBatches
from trainer.data.tokenizer import end_of_document, named_by
from trainer.formats.data.data_sources import groups
from trainer.formats.data.vocabulary_files import read_notes
from trainer.formats.logs.training_line import tokens_line
from trainer.model.dropout import has_dropout
from trainer.model.pipeline import EngineItem, engine_item
from trainer.parallel.process_groups import Parallel
from trainer.recipe.model_options import option_name, separates_documents
from trainer.recipe.options import Options


class EngineItems(Iterator[EngineItem]):
    """The micro-batches of a dataset for this rank, from `consumed_samples` on."""

    def __init__(
        self,
        dataset: Dataset,
        consumed_samples: int,
        options: Options,
        parallel: Parallel,
        workers: int,
        vocab_size: int,
        end_of_document: int | None,
        with_first_sample: bool,
    ) -> None:
        self._end_of_document = end_of_document
        self._with_first_sample = with_first_sample
        self._documents = {"masks_loss": options.eod_mask_loss, "with_starts": separates_documents(options)}
        # Of the ranks that read the same samples one shows them.
        self._may_show = parallel.is_first_stage and parallel.tensor_rank == 0
        self._shown_as: int | None = None
        self._samples_at_once = options.micro_batch_size * parallel.data_size
        self._batches = MicroBatches(
            dataset,
            consumed_samples,
            options.micro_batch_size,
            parallel.data_rank,
            parallel.data_size,
            workers=workers,
            vocab_size=vocab_size,
        )

    def __next__(self) -> EngineItem:
        first_sample, samples = next(self._batches)
        if self._shown_as is not None and self._may_show:
            for row, sample in enumerate(samples.numpy()):
                say(tokens_line(self._shown_as, first_sample + row, sample))
        place = first_sample if self._with_first_sample else None
        return engine_item(samples, self._end_of_document, place, **self._documents)

    def go_to(self, consumed_samples: int) -> None:
        """Go on there, where that is not what comes next anyway."""
        self._batches.go_to(consumed_samples)

    def show_as(self, iteration: int | None) -> None:
        """Print the tokens of what is read from now on, as that iteration's; None: no more."""
        self._shown_as = iteration

    def read(self, batch_size: int) -> None:
        """Read a global batch and drop it: for what it prints."""
        for _ in range(batch_size // self._samples_at_once):
            next(self)

    def close(self) -> None:
        """End the threads that read ahead."""
        self._batches.close()


def open_items(
    dataset: Dataset | None,
    consumed_samples: int,
    options: Options,
    parallel: Parallel,
    vocab_size: int,
    end_of_document: int | None,
    for_training: bool,
) -> EngineItems | None:
    """Return the dataset's micro-batches, None if this rank's pipeline stage reads none."""
    if dataset is None or not parallel.needs_data:
        return None
    workers = options.num_workers if for_training else options.valid_num_workers
    with_first_sample = for_training and has_dropout(options)
    return EngineItems(
        dataset, consumed_samples, options, parallel, workers, vocab_size, end_of_document, with_first_sample
    )


def end_of_document_id(options: Options) -> int | None:
    """Return the token that ends a document; None if no option needs it. Raises DataError if it is unknown."""
    needing = [name for name in ("eod_mask_loss", "reset_attention_mask", "reset_position_ids") if options[name]]
    if not needing:
        return None
    for source in (source for group in groups(options, "train") for source in group.sources):
        noted = read_notes(source.prefix)
        if noted is not None and noted.eod is not None:
            return noted.eod
    if named := named_by(options):
        return end_of_document(named[0])
    raise DataError(f"{option_name(needing[0])} needs the token that ends a document: give --tokenizer-name-or-path")
