"""Results of data commands as JSON: indices, inspected sets and samples, mixtures."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class SequenceLengths(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens the sequences of a data set have: lengths that some of them really have."""

    shortest: Annotated[int, Meta(description="The least.")]
    p10: Annotated[int, Meta(description="A tenth has no more.")]
    median: Annotated[int, Meta(description="Half have no more.")]
    p90: Annotated[int, Meta(description="Nine tenths have no more.")]
    p99: Annotated[int, Meta(description="99 of 100 have no more.")]
    longest: Annotated[int, Meta(description="The most.")]
    mean: Annotated[float, Meta(description="Tokens for each sequence.")]


class SetNotes(msgspec.Struct, frozen=True, kw_only=True):
    """What is noted beside the data, by whoever prepared it; null: it does not say."""

    vocab_size: Annotated[int | None, Meta(description="Tokens of the vocabulary.")]
    eod: Annotated[int | None, Meta(description="The token that ends each document.")]
    tokenizer: Annotated[str, Meta(description="Path of the tokenizer's file.")]
    tokenizer_sha256: Annotated[str | None, Meta(description="SHA-256 of it.")]


class InspectedSet(msgspec.Struct, frozen=True, kw_only=True):
    """What is in one pair of files."""

    data: Annotated[str, Meta(description="The files' prefix, as it was given.")]
    documents: Annotated[int, Meta(description="Documents.")]
    sequences: Annotated[int, Meta(description="Sequences, which are what the trainer shuffles; one a document here.")]
    tokens: Annotated[int, Meta(description="Tokens.")]
    empty: Annotated[int, Meta(description="Sequences without a token.")]
    dtype: Annotated[str, Meta(description="Type of the stored tokens.")]
    bin_bytes: Annotated[int, Meta(description="Size of the tokens' file.")]
    idx_bytes: Annotated[int, Meta(description="Size of the index.")]
    lengths: Annotated[SequenceLengths | None, Meta(description="Of its sequences; null without any.")]
    notes: Annotated[SetNotes | None, Meta(description="What is noted beside them; null: nothing.")]


class ReadPiece(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a document that a sample has."""

    document: Annotated[int, Meta(description="Its number in the file, from 0.")]
    start: Annotated[int, Meta(description="The first of its tokens that the sample has.")]
    stop: Annotated[int, Meta(description="The token after the last one.")]


class ReadSample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a training."""

    sample: Annotated[int, Meta(description="Its place in the training's order: samples consumed before it.")]
    iteration: Annotated[int, Meta(description="The iteration that reads it, from 1.")]
    skipped: Annotated[bool, Meta(description="Whether that one was skipped, so that nothing is learnt from it.")]
    data: Annotated[str, Meta(description="Prefix of the files that it is from.")]
    pieces: Annotated[list[ReadPiece], Meta(description="What it is made of, end to end.")]
    tokens: Annotated[list[int], Meta(description="All of it, seq_length and the one that is only predicted.")]
    text: Annotated[str | None, Meta(description="The same as text; null without a tokenizer.")]


class ReadSamples(msgspec.Struct, frozen=True, kw_only=True):
    """A range of a training's samples."""

    first_sample: Annotated[int, Meta(description="The first one: samples consumed before it.")]
    end_sample: Annotated[int, Meta(description="Samples consumed after the last one.")]
    tokenizer: Annotated[str | None, Meta(description="What the text is read with; null: none was found.")]
    is_checkpoints_order: Annotated[
        bool | None,
        Meta(description="Whether the latest checkpoint's training had this order; null where nobody knows."),
    ]
    samples: Annotated[list[ReadSample], Meta(description="In the training's order.")]


class EpochEnd(msgspec.Struct, frozen=True, kw_only=True):
    """When a training is through a data set once more: as many tokens of it were read as it has."""

    epoch: Annotated[int, Meta(description="How often it is through then.")]
    samples: Annotated[int, Meta(description="Samples of the training consumed then.")]
    iteration: Annotated[
        int | None, Meta(description="The iteration that reads the last one of them; null where nobody knows.")
    ]


class RealisedSource(msgspec.Struct, frozen=True, kw_only=True):
    """What a training has had of one of its data sets."""

    data: Annotated[str, Meta(description="The files' prefix.")]
    first_document: Annotated[int, Meta(description="The first document of its part.")]
    end_document: Annotated[int, Meta(description="The one after the last.")]
    tokens_per_epoch: Annotated[int, Meta(description="Tokens of its part.")]
    asked: Annotated[float, Meta(description="The share that was asked for.")]
    realised: Annotated[float, Meta(description="The share of the samples that were trained on; 0 without any.")]
    samples: Annotated[int, Meta(description="Samples of it that were trained on.")]
    skipped_samples: Annotated[int, Meta(description="Samples of it that were skipped.")]
    epochs: Annotated[float, Meta(description="How often it was gone through, what was skipped included.")]
    epoch_ends: Annotated[
        list[EpochEnd], Meta(description="Of the whole training, each; what was skipped counts as read.")
    ]


class RealisedMixture(msgspec.Struct, frozen=True, kw_only=True):
    """What a training has had of each of its data sets, against what was asked."""

    up_to: Annotated[int, Meta(description="Of so many samples consumed.")]
    iteration: Annotated[
        int | None, Meta(description="The iteration that reads the last one of them; null without any.")
    ]
    end_sample: Annotated[int, Meta(description="Samples consumed at the training's end.")]
    samples: Annotated[int, Meta(description="Samples that were trained on.")]
    skipped_samples: Annotated[int, Meta(description="Samples that were skipped.")]
    sequence_length: Annotated[int, Meta(description="Tokens of a sample.")]
    is_checkpoints_order: Annotated[
        bool | None,
        Meta(description="Whether the latest checkpoint's training had this order; null where nobody knows."),
    ]
    sources: Annotated[list[RealisedSource], Meta(description="In the order of the blend.")]


class KeptIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The order of one file's samples, or those of all files of a blend and in which it takes from them."""

    data: Annotated[str | None, Meta(description="The file's prefix, absolute and without links; null for a blend.")]
    samples: Annotated[int | None, Meta(description="Samples asked of it; null where one epoch is.")]
    state: Annotated[
        str,
        Meta(
            description="`there` before, `built` now, `not kept` where no folder could be written; with `--dry-run` "
            "`to be built`."
        ),
    ]
    listing: Annotated[
        str | None, Meta(description="The file that names its arrays, NAME.json beside NAME-ARRAY.npy; null: none.")
    ]
    bytes: Annotated[int, Meta(description="Size of its arrays.")]


class IndexedData(msgspec.Struct, frozen=True, kw_only=True):
    """All that a training of these lengths would build at its start."""

    train_samples: Annotated[int, Meta(description="Samples that the training data has to give.")]
    valid_samples: Annotated[int, Meta(description="Samples of each validation group.")]
    test_samples: Annotated[int, Meta(description="Samples of each test group.")]
    iteration: Annotated[int, Meta(description="Of the checkpoint that the training goes on from; 0 at a beginning.")]
    indices: Annotated[list[KeptIndex], Meta(description="Each once, in the order in which the training asks.")]
    dry_run: Annotated[bool, Meta(description="Whether nothing was built.")]


class MixedPart(msgspec.Struct, frozen=True, kw_only=True):
    """What one split has of a data set."""

    start: Annotated[float, Meta(description="Where among its documents the part begins, as a share of all.")]
    end: Annotated[float, Meta(description="Where it ends.")]
    documents: Annotated[int, Meta(description="Documents of the part.")]
    tokens: Annotated[int, Meta(description="Their tokens.")]


class MixedSet(msgspec.Struct, frozen=True, kw_only=True):
    """One data set of the mixture."""

    data: Annotated[str, Meta(description="The files' prefix, absolute.")]
    documents: Annotated[int, Meta(description="Documents of the whole set.")]
    tokens: Annotated[int, Meta(description="Tokens of the whole set.")]
    size_share: Annotated[float, Meta(description="Its share of all sets' tokens.")]
    share: Annotated[float, Meta(description="Its share of the samples: its weight, of which all add up to 1.")]
    epochs: Annotated[
        float | None,
        Meta(description="How often the training goes through its training part; null where no length is known."),
    ]
    over_limit: Annotated[bool, Meta(description="Whether that is more often than the limit.")]
    train: Annotated[MixedPart, Meta(description="What is trained on.")]
    valid: Annotated[MixedPart | None, Meta(description="What is validated on; null: nothing.")]
    test: Annotated[MixedPart | None, Meta(description="What is tested on; null: nothing.")]


class SplitFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The weighted split files, each as its option `--SPLIT-weighted-split-paths-path` reads it."""

    train: Annotated[str, Meta(description="Path of the one to train on.")]
    valid: Annotated[str | None, Meta(description="Path of the one to validate on; null: none.")]
    test: Annotated[str | None, Meta(description="Path of the one to test on; null: none.")]


class MixedData(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of data sets."""

    alpha: Annotated[
        float | None, Meta(description="Shares are as tokens to the power of this; null where they were given.")
    ]
    train_tokens: Annotated[int | None, Meta(description="Tokens of the whole training; null where nobody said.")]
    most_epochs: Annotated[float, Meta(description="The limit above which `over_limit` says so.")]
    sets: Annotated[list[MixedSet], Meta(description="In the order in which they were given.")]
    files: Annotated[SplitFiles, Meta(description="What was written.")]
    dry_run: Annotated[bool, Meta(description="Whether nothing was written.")]
