"""What somebody who installs the wheel gets."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files in the wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("opsctl-*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("package", ["opsctl", "trainer"])
def test_it_holds_every_module_and_the_word_that_they_are_typed(names: set[str], package: str) -> None:
    modules = {str(source.relative_to(ROOT)) for source in (ROOT / package).rglob("*.py")}
    assert modules <= names
    assert f"{package}/py.typed" in names


def test_it_holds_every_template_inside_the_package(names: set[str]) -> None:
    templates = {path.relative_to(ROOT) for path in (ROOT / "templates").rglob("*") if path.is_file()}
    assert {f"opsctl/_shipped/{path}" for path in templates} <= names


def test_it_holds_all_that_is_compiled_inside_the_package(names: set[str]) -> None:
    sources = {path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*") if path.is_file()}
    assert {f"opsctl/_shipped/{path}" for path in sources} <= names
    assert {"cuda/device.cuh", "emulator/emulated.h"} <= {str(path.relative_to("csrc")) for path in sources}


def test_it_holds_every_job_of_the_pseudo_cron_inside_the_package(names: set[str]) -> None:
    jobs = {path.relative_to(ROOT) for path in (ROOT / "cron").rglob("*") if path.is_file()}
    assert {f"opsctl/_shipped/{path}" for path in jobs} <= names
    assert {path.stem for path in jobs} >= {
        "slurm-status",
        "progress",
        "refill",
        "requests",
        "fs-watchdog",
        "checkpoint-backup",
        "checkpoint-rotation",
    }


def test_it_holds_nothing_else(names: set[str]) -> None:
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"opsctl", "trainer"}
