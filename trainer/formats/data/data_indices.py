"""What `opsctl data index` prints with `--json`: orders of samples that a training maps instead of building them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


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
