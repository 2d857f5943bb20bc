"""Runs whose environment is built from the tests' own wheels, without a network."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from uv import find_uv_bin

from opsctl.run.config.load import LoadedRun, load_run_file
from opsctl.run.environments.building import Built, build
from opsctl.run.environments.recipe import recipe_of
from tests.tiny_run import write_run
from tests.tiny_wheel import make_wheel

#: An "extension" that is one file; one that leaves no room for another; one that kills its first builder.
COMPILES = """
import os, pathlib, signal
def compile():
    place = pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"]) / "adam" / "adam.so"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"for " + os.environ["TORCH_CUDA_ARCH_LIST"].encode())
def fill_the_disk():
    with pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"], "filling").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
def kill_once():
    flag = pathlib.Path(os.environ["HOME"]) / "killed"
    if not flag.exists():
        flag.touch()
        os.kill(os.getppid(), signal.SIGKILL)
"""


def write_built_run(folder: Path, more: str = "") -> LoadedRun:
    """Write a run whose environment is `tiny`, which needs `dep`, with both wheels next to it."""
    path = write_run(folder)
    make_wheel(folder / "links", "tiny", "1.0", needs=("dep>=1",), text=COMPILES)
    make_wheel(folder / "links", "dep", "1.5")
    (folder / "requirements.txt").write_text("tiny\n")
    text = path.read_text().replace("[run]\n", '[run]\nenvironment = "environment/activate.sh"\n')
    table = f'[environment]\nrequirements = ["requirements.txt"]\nfind_links = ["links"]\n{more}\n'
    path.write_text(f"{text}\n{table}")
    return load_run_file(path)


def built(loaded: LoadedRun, offline: bool = False, again: bool = False) -> Built:
    return build(recipe_of(loaded), offline, again, lambda _: None)


def seen_by(script: Path, code: str) -> str:
    """Return the output of `python -c CODE` after sourcing `script`, in a job's bare shell."""
    command = ["bash", "-c", 'set +eu; source "$1"; exec python -c "$2"', "job", str(script), code]
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def find_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join((os.environ["PATH"], str(Path(find_uv_bin()).parent))))
