"""Test what a user who installs opsctl gets, from the wheel and from the source distribution, with no checkout
at hand.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.tiny_wheel import make_venv, make_wheel
from tests.wheelhouse import asked_of, fill

ROOT = Path(__file__).resolve().parents[2]
#: The release checks an installed wheel too, before it tags anything.
nightly = pytest.mark.nightly
EXTRAS = ("trainer", "hub", "s3", "gcs", "pyslurm", "report")


def run(words: list[str | Path], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in `folder` with an environment in which nothing leads to this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OPSCTL", "VIRTUAL"))}
    return subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=folder, env={**kept, **environment})


def build(kind: str, source: Path, folder: Path) -> Path:
    """Return what hatchling makes of `source`, in `folder`."""
    built = run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", folder], source)
    assert built.returncode == 0, built.stderr
    (made,) = folder.glob("opsctl_slurm-*.whl" if kind == "wheel" else "opsctl_slurm-*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheelhouse(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel and those of all that it asks for, without any extra."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    fill(folder, asked_of(wheel))
    shutil.copy(wheel, folder)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder far from any checkout."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def installed(wheelhouse: Path, place: Path) -> Path:
    """`opsctl` as `uv tool install` puts it into a folder of programs, with what the wheel asks for and no more."""
    own = {"UV_TOOL_DIR": str(place / "tools"), "UV_TOOL_BIN_DIR": str(place / "bin"), "XDG_STATE_HOME": str(place)}
    words = [
        "tool",
        "install",
        "-q",
        "--offline",
        "--no-index",
        "--no-cache",
        "--find-links",
        str(wheelhouse),
        "opsctl-slurm",
    ]
    done = run([find_uv_bin(), *words, "--python", sys.executable], place, **own)
    assert done.returncode == 0, done.stderr
    return place / "bin" / "opsctl"


def metadata(wheel: Path) -> list[str]:
    """The lines of the wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return archive.read(name).decode().splitlines()


def test_it_holds_every_module_template_source_and_cron_job_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("opsctl", "trainer"):
        assert {str(source.relative_to(ROOT)) for source in (ROOT / package).rglob("*.py")} <= names
        assert f"{package}/py.typed" in names
    for folder, some in (
        ("templates", {"step.sh.j2"}),
        ("csrc", {"cuda/device.cuh", "data/indices.cpp"}),
        ("cron", {f"hourly/{name}.slurm" for name in ("slurm-status", "progress", "refill", "requests")}),
        ("cron", {f"daily/{name}.slurm" for name in ("fs-watchdog", "checkpoint-backup", "checkpoint-rotation")}),
    ):
        shipped = {str(path.relative_to(ROOT / folder)) for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert some <= shipped
        assert {f"opsctl/_shipped/{folder}/{name}" for name in shipped} <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"opsctl", "opsctl_slurm", "trainer"}


@nightly
def test_the_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(build("sdist", ROOT, tmp_path), tmp_path)
    (source,) = tmp_path.glob("opsctl_slurm-*/")
    again = zipfile.ZipFile(build("wheel", source, tmp_path))
    first = zipfile.ZipFile(wheel)
    assert {one.filename: one.CRC for one in again.infolist()} == {one.filename: one.CRC for one in first.infolist()}


def test_it_has_every_extra_by_its_name(wheel: Path) -> None:
    assert {f"Provides-Extra: {extra}" for extra in EXTRAS} <= set(metadata(wheel))


@nightly
def test_without_an_extra_every_module_of_opsctl_can_be_imported(installed: Path, place: Path) -> None:
    """But the program that asks pyslurm, which its name says."""
    program = (
        "import importlib, pathlib, pkgutil, opsctl\n"
        "names = [m.name for m in pkgutil.walk_packages(opsctl.__path__, 'opsctl.')]\n"
        "names = [n for n in names if not n.endswith(('__main__', 'pyslurm_program'))]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names), opsctl.__file__)"
    )
    done = run([place / "tools" / "opsctl-slurm" / "bin" / "python", "-P", "-c", program], place)
    assert done.returncode == 0, done.stderr
    count, file = done.stdout.split()
    assert int(count) > 300 and Path(file).is_relative_to(place)


@nightly
def test_the_manual_pages_are_installed_with_it(installed: Path, place: Path) -> None:
    pages = {page.name for page in (place / "tools" / "opsctl-slurm" / "share" / "man" / "man1").iterdir()}
    assert {"opsctl.1", "opsctl-status.1", "opsctl-kill-switch-trigger.1"} <= pages


@nightly
def test_a_run_is_made_planned_and_rendered_by_what_is_installed(installed: Path, place: Path) -> None:
    """The examples, the templates of both scripts and the sources of what is compiled come from inside the package."""
    state = {"XDG_STATE_HOME": str(place / "state"), "XDG_CACHE_HOME": str(place / "cache")}
    for name in ("tr11-176B-ml", "demo"):
        made = run([installed, "init", name], place, **state)
        assert made.returncode == 0, made.stderr
    assert "384 = 48 nodes x 8 GPUs" in run([installed, "plan"], place / "tr11-176B-ml", **state).stdout
    said = run([installed, "render"], place / "demo", **state).stdout
    assert "#!/bin/bash" in said and "opsctl job run" in said
    listed = run([installed, "kernels", "list"], place, **state)
    assert listed.returncode == 0 and "cuda-sm_80" in listed.stdout, listed.stderr


@nightly
def test_what_is_typed_for_an_extra_adds_it_to_what_is_installed(wheel: Path, tmp_path: Path) -> None:
    """No index has the project: pip takes what is installed, and fetches what the extra asks for."""
    house = tmp_path / "house"
    python = make_venv(tmp_path / "venv", wheel)
    for one in [*asked_of(wheel), "huggingface_hub"]:
        make_wheel(house, re.split(r"[<>=;]", one)[0].strip().replace("-", "_"), "9999")
    ask = "from trainer.formats.distribution import *; print(version(), requirement('hub'))"
    told = run([python, "-c", ask], tmp_path)
    version, _, requirement = told.stdout.strip().partition(" ")
    assert version in wheel.name
    words: list[str | Path] = [
        "--python",
        python,
        "install",
        "-q",
        "--no-index",
        "--find-links",
        house,
        *shlex.split(requirement),
    ]
    done = run([sys.executable, "-m", "pip", *words], tmp_path)
    assert done.returncode == 0, done.stderr
    assert run([python, "-c", "import huggingface_hub, opsctl"], tmp_path).returncode == 0


@nightly
@pytest.mark.parametrize(
    ("words", "names_it"),
    [
        ("demo", "'opsctl-slurm[trainer]'"),
        ("data prepare . --output-prefix x --vocab-size 300", "'opsctl-slurm[trainer]'"),
        ("hub check", "'opsctl-slurm[hub]'"),
        ("restore --from s3://bucket/x --to there", "'opsctl-slurm[s3]'"),
        ("restore --from gs://bucket/x --to there", "'opsctl-slurm[gcs]'"),
        ("queue", "pip install pyslurm"),
    ],
)
def test_what_needs_an_extra_is_refused_with_its_name(installed: Path, place: Path, words: str, names_it: str) -> None:
    state = {"XDG_STATE_HOME": str(place / "refusing"), "HF_HOME": str(place), "OPSCTL_SLURM_BACKEND": "pyslurm"}
    folder = place / "refusing" / "second"
    if not folder.exists():
        folder.parent.mkdir()
        assert run([installed, "init", "second"], folder.parent, **state).returncode == 0
        text = (folder / "run.toml").read_text()
        (folder / "run.toml").write_text(text + '\n[hub]\nrepo = "somebody/second"\n')
    done = run([installed, *words.split()], folder, **state)
    assert done.returncode == 1 and names_it in done.stderr.splitlines()[-1], (done.stdout, done.stderr)
