"""The training data of a run in the order in which the run reads it, for who only looks: nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.data.build import build_datasets
from trainer.data.gpt_dataset import BlendedDataset, GPTDataset
from trainer.data.index_cache import IndexCache
from trainer.data.sample_order import sample_order
from trainer.formats.checkpoint.batch_history import BatchHistory
from trainer.formats.checkpoint.changes import training_changes
from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.checkpoint.starting import manifest_at_start
from trainer.formats.errors import DataError
from trainer.recipe.lengths import BEGINNING, Lengths
from trainer.recipe.options import Options


@dataclass(frozen=True)
class RunOrder:
    """What each iteration reads. consumed: samples, by the checkpoint that the training goes on from."""

    dataset: GPTDataset | BlendedDataset
    history: BatchHistory
    iterations: int  # of the whole training
    consumed: int
    is_checkpoints_order: bool | None  # None: there is no checkpoint, or it does not say

    @classmethod
    def of(cls, options: Options) -> RunOrder:
        """For a training that would start with these options now. Raises DataError, CheckpointError and ValueError."""
        manifest = manifest_at_start(options)
        lengths = Lengths.of(options, manifest or BEGINNING)
        data = build_datasets(
            options, lengths.samples_to_read, 0, 0, cache=lambda folders: IndexCache(folders, keeps=False)
        )
        if not isinstance(data.train, GPTDataset | BlendedDataset):
            raise DataError("the training reads no sample")
        return cls(
            data.train,
            BatchHistory.of(options, manifest),
            lengths.train_iterations,
            manifest.consumed_train_samples if manifest else 0,
            _is_its_order(manifest, data.train),
        )

    @property
    def end(self) -> int:
        """Samples consumed at the training's end."""
        return self.history.samples_after(self.iterations)

    @property
    def sources(self) -> Sequence[GPTDataset]:
        """Its data sets, in the blend's order."""
        return self.dataset.sources if isinstance(self.dataset, BlendedDataset) else (self.dataset,)

    def source_of(self, sample: int) -> tuple[GPTDataset, int]:
        """The data set that gives the sample, and the place there."""
        if isinstance(self.dataset, BlendedDataset):
            number, place = self.dataset.source_of(sample)
            return self.dataset.sources[number], place
        return self.dataset, sample

    def samples_in(self, text: str) -> tuple[int, int]:
        """`A:B`: from A samples consumed to B. Raises DataError."""
        first, end = _range(text, "--samples", "from A samples consumed to B, with A below B")
        if not first < end:
            raise DataError(f"--samples {text}: it has to end after it begins; expected A:B with A below B")
        if end > self.end:
            raise DataError(f"--samples {text}: the training ends with {self.end:,} samples consumed")
        return first, end

    def samples_of_iterations(self, text: str) -> tuple[int, int]:
        """`A:B`: what the iterations A to B read, both in and counted from 1. Raises DataError."""
        first, last = _range(text, "--iterations", "iterations A to B, both in, counted from 1")
        if not 1 <= first <= last:
            raise DataError(f"--iterations {text}: expected A:B with 1 <= A <= B; both are in, counted from 1")
        if last > self.iterations:
            raise DataError(f"--iterations {text}: the training has {self.iterations:,} iterations")
        return self.history.samples_after(first - 1), self.history.samples_after(last)


def _is_its_order(manifest: Manifest | None, dataset: GPTDataset | BlendedDataset) -> bool | None:
    if manifest is None or manifest.training.get("sample_order") is None:
        return None
    return not training_changes(manifest, {"sample_order": sample_order(dataset)})


def _range(text: str, option: str, means: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not (colon and first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise DataError(f"{option} {text}: expected A:B, two whole numbers: {means}")
    return int(first), int(last)
