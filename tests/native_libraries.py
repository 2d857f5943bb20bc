"""The C++ libraries for tests, built of the present sources for this CPU's level where no test session has yet.

They are built once for a machine and the sources' key, into a folder that only tests look into; what lies in the
user's own cache is found, and nothing is added to it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile
from pathlib import Path

import pytest

from trainer.kernels.native.artifacts import library_artifact, own_levels
from trainer.kernels.native.building import build
from trainer.kernels.native.cache import CACHE_VARIABLE, cache_folders
from trainer.kernels.native.libraries import NotBuilt, load_library
from trainer.kernels.native.toolchains import CompilerError


def build_into_own_folder() -> None:
    """Have this process, and what it starts, build into the tests' folder, and look there before the user's cache."""
    folder = Path(tempfile.gettempdir()) / f"opsctl-test-libraries-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    others = [str(one) for one in cache_folders() if one != folder]
    os.environ[CACHE_VARIABLE] = ":".join([str(folder), *others])


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
