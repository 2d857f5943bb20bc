"""A program without torch that counts steps and misbehaves as its arguments say.

    python misbehaving.py HOW STEPS

Rank 0 saves every 5 steps. HOW: "hangs" once at step 12 (a file notes it), "quits" without training, with exit code 0,
"halves" writes half of each second checkpoint and dies, once.
"""

from __future__ import annotations

import os
import sys
import time
import zipfile
from pathlib import Path

HOW, STEPS, IS_FIRST = sys.argv[1], int(sys.argv[2]), os.environ["RANK"] == "0"
FOLDER, ONCE = Path("saved"), Path("once-" + os.environ["RANK"])


def hang() -> None:
    time.sleep(3600)


def save(step: int) -> None:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"step-{step}.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("weights/data.pkl", b"x" * 1000)
    if HOW == "halves" and step == 10 and not ONCE.exists():
        ONCE.touch()
        path.write_bytes(path.read_bytes()[:500])
        os._exit(1)


def main() -> None:
    if HOW == "quits":
        return
    name = Path(os.environ["OPSCTL_CHECKPOINT"]).stem
    for step in range(int(name.rpartition("-")[2] or 0) + 1, STEPS + 1):
        if IS_FIRST:
            print(f"step {step}/{STEPS} loss {1 / step:.4f}", flush=True)
        time.sleep(0.3)
        if HOW == "hangs" and step == 12 and not ONCE.exists():
            ONCE.touch()
            hang()
        if IS_FIRST and step % 5 == 0:
            save(step)


if __name__ == "__main__":
    main()
