"""Results of data commands as JSON: indices, inspected sets and samples, mixtures."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class SequenceLengths(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens per sequence of a data set. Each length is one of an existing sequence."""

    shortest: Annotated[int, Meta(description="The least.")]
    p10: Annotated[int, Meta(description="A tenth of the sequences have at most so many tokens.")]
    median: Annotated[int, Meta(description="Half of the sequences have at most so many tokens.")]
    p90: Annotated[int, Meta(description="Nine tenths of the sequences have at most so many tokens.")]
    p99: Annotated[int, Meta(description="99 % of the sequences have at most so many tokens.")]
    longest: Annotated[int, Meta(description="The most.")]
    mean: Annotated[float, Meta(description="Mean number of tokens per sequence.")]


class SetNotes(msgspec.Struct, frozen=True, kw_only=True):
    """Notes that the preparing program left next to the data; null: not noted."""

    vocab_size: Annotated[int | None, Meta(description="Size of the vocabulary.")]
    eod: Annotated[int | None, Meta(description="The token that ends each document.")]
    tokenizer: Annotated[str, Meta(description="Path of the tokenizer's file.")]
    tokenizer_sha256: Annotated[str | None, Meta(description="SHA-256 of that file.")]


class InspectedSet(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one pair of files."""

    data: Annotated[str, Meta(description="The files' prefix, as given.")]
    documents: Annotated[int, Meta(description="Documents.")]
    sequences: Annotated[int, Meta(description="Sequences, which the trainer shuffles; here each is one document.")]
    tokens: Annotated[int, Meta(description="Tokens.")]
    empty: Annotated[int, Meta(description="Sequences without a token.")]
    dtype: Annotated[str, Meta(description="Type of the stored tokens.")]
    bin_bytes: Annotated[int, Meta(description="Size of the tokens' file.")]
    idx_bytes: Annotated[int, Meta(description="Size of the index.")]
    lengths: Annotated[SequenceLengths | None, Meta(description="Lengths of its sequences; null without any.")]
    notes: Annotated[SetNotes | None, Meta(description="The notes next to the files; null: none.")]


class ReadPiece(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a document that is in a sample."""

    document: Annotated[int, Meta(description="Number of the document in the file, from 0.")]
    start: Annotated[int, Meta(description="The first of its tokens in the sample.")]
    stop: Annotated[int, Meta(description="The token after the last one.")]


class ReadSample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a training."""

    sample: Annotated[int, Meta(description="Position in the training's order: samples consumed before it.")]
    iteration: Annotated[int, Meta(description="The iteration that reads it, from 1.")]
    skipped: Annotated[bool, Meta(description="Whether that iteration was skipped and not trained on.")]
    data: Annotated[str, Meta(description="Prefix of its files.")]
    pieces: Annotated[list[ReadPiece], Meta(description="The pieces of documents that it consists of, end to end.")]
    tokens: Annotated[
        list[int], Meta(description="Tokens of the sample: seq_length and the one that is only predicted.")
    ]
    text: Annotated[str | None, Meta(description="The tokens as text; null without a tokenizer.")]


class ReadSamples(msgspec.Struct, frozen=True, kw_only=True):
    """A range of a training's samples."""

    first_sample: Annotated[int, Meta(description="The first sample: samples consumed before it.")]
    end_sample: Annotated[int, Meta(description="Samples consumed after the last one.")]
    tokenizer: Annotated[str | None, Meta(description="Path of the tokenizer for the text; null: none was found.")]
    is_checkpoints_order: Annotated[
        bool | None,
        Meta(description="Whether the latest checkpoint's training had this order; null if unknown."),
    ]
    samples: Annotated[list[ReadSample], Meta(description="In the training's order.")]


class KeptIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The sample order of one file, or the order in which a blend takes from its files."""

    data: Annotated[str | None, Meta(description="The file's prefix, absolute and without links; null for a blend.")]
    samples: Annotated[int | None, Meta(description="Samples requested from it; null for one epoch.")]
    state: Annotated[
        str,
        Meta(
            description="`there` before, `built` now, `not kept` (no writable folder); with `--dry-run` `to be built`."
        ),
    ]
    listing: Annotated[
        str | None, Meta(description="The file that names its arrays, NAME.json next to NAME-ARRAY.npy; null: none.")
    ]
    bytes: Annotated[int, Meta(description="Size of its arrays.")]


class IndexedData(msgspec.Struct, frozen=True, kw_only=True):
    """All indices that a training of these lengths would build at its start."""

    train_samples: Annotated[int, Meta(description="Samples needed from the training data.")]
    valid_samples: Annotated[int, Meta(description="Samples of each validation group.")]
    test_samples: Annotated[int, Meta(description="Samples of each test group.")]
    iteration: Annotated[
        int, Meta(description="Samples consumed by the checkpoint that the training resumes from; 0 at the start.")
    ]
    indices: Annotated[list[KeptIndex], Meta(description="Each once, in the order in which the training needs them.")]
    dry_run: Annotated[bool, Meta(description="Whether nothing was built.")]


class MixedPart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one split in a data set."""

    start: Annotated[float, Meta(description="Start of the part, as a share of all documents.")]
    end: Annotated[float, Meta(description="End of the part, as a share of all documents.")]
    documents: Annotated[int, Meta(description="Documents of the part.")]
    tokens: Annotated[int, Meta(description="Their tokens.")]


class MixedSet(msgspec.Struct, frozen=True, kw_only=True):
    """One data set of the mixture."""

    data: Annotated[str, Meta(description="The files' prefix, absolute.")]
    documents: Annotated[int, Meta(description="Documents of the whole set.")]
    tokens: Annotated[int, Meta(description="Tokens of the whole set.")]
    size_share: Annotated[float, Meta(description="Its share of all sets' tokens.")]
    share: Annotated[float, Meta(description="Its share of the samples: its weight. All weights add up to 1.")]
    epochs: Annotated[
        float | None,
        Meta(description="Number of passes over its training part; null if the length is unknown."),
    ]
    over_limit: Annotated[bool, Meta(description="Whether there are more passes than the limit.")]
    train: Annotated[MixedPart, Meta(description="The part for training.")]
    valid: Annotated[MixedPart | None, Meta(description="The part for validation; null: none.")]
    test: Annotated[MixedPart | None, Meta(description="The part for testing; null: none.")]


class SplitFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The weighted split files, each as its option `--SPLIT-weighted-split-paths-path` reads it."""

    train: Annotated[str, Meta(description="Path of the file for training.")]
    valid: Annotated[str | None, Meta(description="Path of the file for validation; null: none.")] = None
    test: Annotated[str | None, Meta(description="Path of the file for testing; null: none.")] = None


class MixedData(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of data sets."""

    alpha: Annotated[float | None, Meta(description="Weights are tokens to the power of this.")]
    train_tokens: Annotated[int | None, Meta(description="Tokens of the whole training; null if not given.")]
    most_epochs: Annotated[float, Meta(description="The limit of `over_limit`.")]
    sets: Annotated[list[MixedSet], Meta(description="In the given order.")]
    files: Annotated[SplitFiles, Meta(description="The files written.")]
    dry_run: Annotated[bool, Meta(description="Whether nothing was written.")]
