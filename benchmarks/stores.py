"""Copies to another folder beside rsync and cp, to S3 beside boto3 and a plain put through fsspec: the same bytes."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.looks import met

#: What a rank or a layer of a mid-sized training writes, and some small ones.
FILES_MIB = (96, 96, 96, 96, 48, 48, 16, 16)
SMALL_FILES, SMALL_BYTES = 64, 100_000
#: (sizes of large files in MiB, how many small ones) to S3: a checkpoint with files that go in parts, and small files.
S3_SETS = {"a checkpoint": ((192, 96, 48, 16), 24), "small files": ((), 200)}
ROUNDS = 3
FOLDER_GOAL, BOTO3_GOAL, FSSPEC_GOAL = 0.8, 1.0, 1.5

_OURS = """
import sys, time
from pathlib import Path
import fsspec, s3fs
from opsctl.transfer.object_store.urls import open_store
from opsctl.transfer.object_store.types import ANYTHING
folder = Path(sys.argv[1])
begun = time.monotonic()
with open_store(sys.argv[2]) as store:
    store.put(folder, {path.name: ANYTHING for path in folder.iterdir()}, "copy").raise_faults()
print(time.monotonic() - begun)
"""
_BOTO3 = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import boto3
from boto3.s3.transfer import TransferConfig, create_transfer_manager
folder, bucket = Path(sys.argv[1]), sys.argv[2].removeprefix("s3://").partition("/")[0]
begun = time.monotonic()
client = boto3.client("s3", region_name="us-east-1")
with create_transfer_manager(client, TransferConfig()) as manager:
    waits = [manager.upload(str(path), bucket, f"boto3/{path.name}") for path in folder.iterdir()]
    for wait in waits:
        wait.result()
print(time.monotonic() - begun)
"""
_FSSPEC = """
import sys, time
import fsspec, s3fs
begun = time.monotonic()
target = sys.argv[2] + "/fsspec/"
fsspec.filesystem("s3").put(sys.argv[1] + "/", target, recursive=True)
print(time.monotonic() - begun)
"""


#: What a user writes who knows fsspec a little: one file after the other, nothing compared.
_PUT_FILE = """
import sys, time
from pathlib import Path
import fsspec, s3fs
begun = time.monotonic()
system = fsspec.filesystem("s3")
for path in Path(sys.argv[1]).iterdir():
    system.put_file(str(path), f"{sys.argv[2]}/put_file/{path.name}")
print(time.monotonic() - begun)
"""


def main() -> dict[str, Any]:
    """Measure, print and return all of it."""
    with tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as folder:
        here = _filled(Path(folder) / "here", FILES_MIB, SMALL_FILES)
        found: dict[str, Any] = {"folder": _folder(here, Path(folder), _bytes_of(here))}
        shutil.rmtree(here)
        for name, (mib, small) in S3_SETS.items():
            here = _filled(Path(folder) / name, mib, small)
            found[name] = _s3(name, here, _bytes_of(here))
            shutil.rmtree(here)
        return found


def _filled(folder: Path, sizes_mib: Sequence[int], small_files: int) -> Path:
    folder.mkdir()
    for number, mib in enumerate(sizes_mib):
        (folder / f"states_{number:02}.pt").write_bytes(os.urandom(mib << 20))
    for number in range(small_files):
        (folder / f"small_{number:03}.pt").write_bytes(os.urandom(SMALL_BYTES))
    os.sync()
    return folder


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _folder(here: Path, above: Path, total: int) -> dict[str, float]:
    there = above / "there"

    def fresh() -> None:
        shutil.rmtree(there, ignore_errors=True)
        there.mkdir()
        os.sync()

    ways: dict[str, Callable[[], float]] = {
        "ours": lambda: _program(_OURS, here, str(there), dict(os.environ)),
        "rsync -a": lambda: _command(["rsync", "-a", f"{here}/", f"{there}/copy/"]),
        "cp -a": lambda: _command(["cp", "-a", f"{here}", f"{there}/copy"]),
        "rsync -a, sync": lambda: _command(["sh", "-c", f"rsync -a {here}/ {there}/copy/ && sync -f {there}"]),
        "rsync -a, sync, compared": lambda: _command(
            ["sh", "-c", f"rsync -a {here}/ {there}/copy/ && sync -f {there} && rsync -ac {here}/ {there}/copy/"]
        ),
    }
    seconds = _rounds(ways, fresh)
    for name in list(ways)[1:]:
        ratio = seconds[name] / seconds["ours"]
        print(
            f"to a folder, {total / 1e6:.0f} MB: ours (on the disk and read back) {seconds['ours']:.2f} s, {name} "
            f"{seconds[name]:.2f} s: {ratio:.2f}x" + _verdict(name, ratio),
            flush=True,
        )
    return seconds


def _verdict(name: str, ratio: float) -> str:
    return f" of the goal of >= {FOLDER_GOAL}x: {met(ratio >= FOLDER_GOAL)}" if name in ("rsync -a", "cp -a") else ""


def _s3(what: str, here: Path, total: int) -> dict[str, float]:
    from tests.s3_server import client, environment, s3_server

    codes = {"ours": _OURS, "boto3": _BOTO3, "fsspec put_file in a loop": _PUT_FILE, "fsspec put": _FSSPEC}
    seconds: dict[str, list[float]] = {name: [] for name in codes}
    for number in range(ROUNDS):
        for name, code in codes.items():
            with s3_server() as endpoint:  # an empty one each: it keeps objects in memory
                client(endpoint).create_bucket(Bucket="bench")
                environ = {**environment(endpoint), "AWS_DEFAULT_REGION": "us-east-1"}
                seconds[name].append(_program(code, here, "s3://bench", environ))
        print(
            f"  {what}, round {number}: " + ", ".join(f"{name} {all_[-1]:.2f} s" for name, all_ in seconds.items()),
            flush=True,
        )
    found = {name: statistics.median(all_) for name, all_ in seconds.items()}
    for name, goal in (("boto3", BOTO3_GOAL), ("fsspec put_file in a loop", FSSPEC_GOAL), ("fsspec put", None)):
        # Of each round's own two, which other work on the machine met alike.
        ratio = statistics.median(one / ours for one, ours in zip(seconds[name], seconds["ours"], strict=True))
        print(
            f"{what} to S3, {total / 1e6:.0f} MB: ours {found['ours']:.2f} s, {name} {found[name]:.2f} s: {ratio:.2f}x"
            + (f" of the goal of >= {goal}x: {met(ratio >= goal)}" if goal else ""),
            flush=True,
        )
    return found


def _rounds(ways: dict[str, Callable[[], float]], fresh: Callable[[], None]) -> dict[str, float]:
    """The median of each way, measured in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            fresh()
            seconds[name].append(way())
    return {name: statistics.median(all_) for name, all_ in seconds.items()}


def _program(code: str, here: Path, target: str, environ: dict[str, str]) -> float:
    """Seconds that a program says it took once its interpreter had started."""
    done = subprocess.run([sys.executable, "-c", code, str(here), target], capture_output=True, text=True, env=environ)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stdout)


def _command(words: list[str]) -> float:
    begun = time.monotonic()
    subprocess.run(words, check=True)
    return time.monotonic() - begun
