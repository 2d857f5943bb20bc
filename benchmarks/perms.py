"""A walk through 200,000 files that finds what the group cannot work with, beside `find` with the same test."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.commands import opsctl
from benchmarks.looks import met
from opsctl.core.account import group_name

#: Of find's time, the walk's share of speed at least.
TARGET = 1.0
FILES, FILES_A_FOLDER, ROUNDS = 200_000, 100, 7


def main() -> dict[str, Any]:
    """Measure, print and return both, in turns, on a file system in memory: the disk's cache says nothing then.

    Beside busy neighbours a walk by two processes gets no more of two cores than find, alone, gets of one.
    """
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="ob", dir=base))
    try:
        _grow(folder)
        group = group_name(os.getgid())
        wrong = f"( -type d ( ! -perm -2070 -o ! -group {group} ) -o -type f ( ! -perm -060 -o ! -group {group} ) )"
        commands = {
            "find": ["find", str(folder), *wrong.split(), "-print"],
            "perms": [*opsctl(), "perms", "check", "--group", group, "--", str(folder)],
        }
        taken: dict[str, list[float]] = {"find": [], "perms": [], "walk": []}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                began = time.perf_counter()
                told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300).stdout
                taken[name].append(time.perf_counter() - began)
                assert "file-000.bin" in told, told
            taken["walk"].append(_walk_s(folder))
        usual = {name: statistics.median(times) for name, times in taken.items()}
        walk, whole = usual["find"] / usual["walk"], usual["find"] / usual["perms"]
        print(
            f"perms walk of {FILES:,} files: {usual['walk']:.2f} s, {walk:.2f}x of find ({usual['find']:.2f} s);"
            f" goal >= {TARGET:.1f}x: {met(walk >= TARGET)}; as a command, with its start: {usual['perms']:.2f} s,"
            f" {whole:.2f}x; medians of {ROUNDS} in turns"
        )
        return {**{f"{name}_s": times for name, times in taken.items()}, "walk_ratio": walk, "command_ratio": whole}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _walk_s(folder: Path) -> float:
    """Return what `perms check` does once it has begun, in this process."""
    from opsctl.run.permissions.apply import Opening
    from opsctl.run.permissions.report import check_folder

    began = time.perf_counter()
    check_folder(folder, group_name(os.getgid()), Opening(os.getgid()), lambda _: None)
    return time.perf_counter() - began


def _grow(root: Path) -> None:
    os.umask(0o007)
    root.chmod(0o2770)
    for number in range(FILES // FILES_A_FOLDER):
        folder = root / f"{number // 50:03}" / f"{number:05}"
        folder.mkdir(parents=True)
        for file in range(FILES_A_FOLDER):
            (folder / f"file-{file:03}.bin").touch()
    for path, _, _ in os.walk(root):
        Path(path).chmod(0o2770)
    (root / "000" / "00000" / "file-000.bin").chmod(0o600)


if __name__ == "__main__":
    main()
