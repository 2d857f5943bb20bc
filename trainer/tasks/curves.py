"""`python -m trainer.tasks.curves RESULTS FOLDER`: write the results of an evaluation for TensorBoard.

There is one file per checkpoint, which is replaced if it is written again, so no point appears twice. FOLDER must be
separate from the training's: TensorBoard follows only the newest file of a folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from trainer.core.console import failed
from trainer.core.files import be_as_open_as_its_folder, make_folder


def points(results: dict[str, Any]) -> list[tuple[str, float]]:
    """Return (tag, value) for each number of each task, with the standard errors."""
    found = []
    for task in results["tasks"]:
        for of, metrics in task["metrics"].items():
            for metric, value in metrics.items():
                found.append((f"lm-eval/{of}/{metric}", float(value)))
    return found


def draw(results: dict[str, Any], folder: Path) -> Path:
    """Write the file of one checkpoint, and return its path. Steps are iterations, and samples in `... vs samples`."""
    from torch.utils.tensorboard import SummaryWriter

    make_folder(folder)
    suffix = f".global_step{results['iteration']}"
    before = list(folder.glob(f"*tfevents*{suffix}"))
    writer: Any = SummaryWriter(str(folder), filename_suffix=suffix)
    for tag, value in points(results):
        writer.add_scalar(tag, value, results["iteration"])
        writer.add_scalar(f"{tag} vs samples", value, results["consumed_train_samples"])
    writer.close()
    for old in before:
        old.unlink(missing_ok=True)
    new = next(one for one in folder.glob(f"*tfevents*{suffix}"))
    be_as_open_as_its_folder(new)
    return new


def main(argv: list[str]) -> int:
    """Return 0 on success, 1 after a failure."""
    try:
        draw(json.loads(Path(argv[0]).read_text(encoding="utf-8")), Path(argv[1]))
    except (OSError, ValueError, KeyError, ImportError) as error:
        return failed(f"{argv[1]} gives no curves: {error}", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
