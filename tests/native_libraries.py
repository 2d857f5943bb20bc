"""The C++ libraries for tests, built of the present sources for this CPU's level where nobody has yet."""

from __future__ import annotations

import ctypes
import functools

import pytest

from trainer.native.artifacts import library_artifact, own_levels
from trainer.native.building import build
from trainer.native.libraries import NotBuilt, load_library
from trainer.native.toolchains import CompilerError


@functools.cache
def built_library(library: str) -> ctypes.CDLL:
    """`operations` or `data`, as a training loads it. Skips the test where there is no compiler."""
    artifact = library_artifact(library, own_levels()[0])
    assert artifact, f"no sources of {library}"
    try:
        build(artifact)
    except CompilerError as error:
        if "no C++ compiler" in str(error):
            pytest.skip(str(error))
        raise
    loaded = load_library(library)
    assert not isinstance(loaded, NotBuilt), loaded
    return loaded
