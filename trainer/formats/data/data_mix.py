"""What `opsctl data mix` prints with `--json`: data sets, their shares of a mixture, and the files that say so."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


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
