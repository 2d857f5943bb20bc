"""Every CUDA kernel once more under sanitizers: what its own tests launch, beside no array and without a race.

The tests of this folder run again in a session of their own, in one order of threads, until the first small launches of
each kernel are kept; these are replayed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator.replayed import RECORD_VARIABLE, Sanitizer, replay
from tests.emulator.runner import kernels_in, needs_gxx
from trainer.kernels.native.artifacts import csrc_folder, kernel_sources

ROOT = Path(__file__).resolve().parents[4]
#: What no test of this folder launches: `opsctl kernels check` does.
SOURCES = [source for source in kernel_sources(csrc_folder()) if source.stem != "smoke"]
pytestmark = [
    needs_gxx,
    pytest.mark.skipif("OPSCTL_SANITIZE" not in os.environ, reason="minutes of compiling: make sanitize runs it"),
]


@pytest.fixture(scope="session")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launches")
    words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "emulator", str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, RECORD_VARIABLE: str(folder)},
        capture_output=True,
        text=True,
        timeout=550,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return folder


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_every_kernel_is_launched_small_enough_to_be_replayed(launches: Path, source: Path) -> None:
    recorded = (launches / f"{source.stem}.launches").read_bytes()
    assert not {name for name in kernels_in(source) if name.encode() not in recorded}


@pytest.mark.parametrize("sanitizer", Sanitizer)
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_no_kernel_touches_what_is_not_its_own_or_races(launches: Path, source: Path, sanitizer: Sanitizer) -> None:
    complaint = replay(source, launches / f"{source.stem}.launches", sanitizer)
    assert complaint is None, complaint
