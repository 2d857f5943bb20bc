"""Small `.bin/.idx` pairs for the data tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.native_libraries import built_library
from trainer.data import compiled
from trainer.data.indexed import write_pair

MakePair = Callable[..., str]


@pytest.fixture(scope="module", params=["C++", "numpy"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both that compute the same: a module's tests run with each."""
    with pytest.MonkeyPatch.context() as patched:
        _compute_by(patched, request.param)
        yield request.param


@pytest.fixture(scope="module")
def built() -> Iterator[None]:
    """C++, for what has no equal to be compared with but numpy's own."""
    with pytest.MonkeyPatch.context() as patched:
        _compute_by(patched, "C++")
        yield


def _compute_by(patched: pytest.MonkeyPatch, engine: str) -> None:
    library = compiled.declared(built_library("data")) if engine == "C++" else None
    patched.setattr(compiled, "library", lambda: library)


@pytest.fixture
def make_pair(tmp_path: Path) -> MakePair:
    """`make_pair("name", documents)` or `make_pair("name", lengths=[...])` (ids count up): the pair's prefix."""

    def make(
        name: str, documents: Sequence[Sequence[int]] | None = None, lengths: Sequence[int] = (), dtype: str = "<u2"
    ) -> str:
        if documents is None:
            ends = np.cumsum(lengths)
            documents = [list(range(end - length, end)) for end, length in zip(ends, lengths, strict=True)]
        prefix = tmp_path / name
        tokens = np.array([token for document in documents for token in document], dtype)
        write_pair(prefix, tokens, np.array([len(document) for document in documents], np.int32))
        return str(prefix)

    return make


def options_for(**given: Any) -> dict[str, Any]:
    """Return the trainer's options that the data code reads."""
    defaults = {"seq_length": 8, "seed": 1234, "separate_last_epoch_threshold": 0.80, "split": "1,0,0"}
    return {**defaults, **given}
