"""A run with checkpoints that have files, for what cares for them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash

from opsctl.run.checkpoints.backups import BackedUp
from opsctl.run.checkpoints.retention import Answers
from opsctl.run.config.load import load_run_file
from opsctl.run.state.revisions import publish
from opsctl.run.state.run_view import RunView, view
from tests.tiny_run import MANIFEST, ready, write_run

#: Of `write_run`: 500 iterations of 8 samples.
SAMPLES = 4000


def care_run(
    folder: Path, retention: str = "last = 2\nfull_percent = 0", group: str = "", backed_up_to: Path | str | None = None
) -> Path:
    """A run file with `[retention]` in `folder`, and with `[backup]`, published; returns its path."""
    run_file = write_run(folder, group=group)
    backup = f'[backup]\nto = ["{backed_up_to}"]\n\n' if backed_up_to else ""
    text = run_file.read_text().replace("[expect]", f"[retention]\n{retention}\n\n{backup}[expect]")
    run_file.write_text(text)
    run = ready(load_run_file(run_file))
    publish(run)
    return run_file


def seen(folder: Path) -> RunView:
    return view(str(folder / "run.toml"))


def save(folder: Path, iteration: int, **more: object) -> Path:
    """A whole checkpoint as the trainer leaves it, and the latest."""
    checkpoints = folder / "output" / "checkpoints"
    saved = checkpoints / f"global_step{iteration}"
    saved.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in ("layer_01-model_00-model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        data = f"{name} of {iteration}".encode() * 10
        (saved / name).write_bytes(data)
        files[name] = {"bytes": len(data), "xxh64": xxhash.xxh64(data).hexdigest()}
    progress = {
        "iteration": iteration,
        "consumed_train_samples": 8 * iteration,
        "consumed_train_tokens": 128 * iteration,
    }
    (saved / "manifest.json").write_text(json.dumps({**MANIFEST, **progress, "files": files, **more}))
    (checkpoints / "latest").write_text(saved.name)
    return saved


def asks_nobody(lines: Sequence[BackedUp]) -> Answers:
    """For a prune of a run that has no copies anywhere."""
    assert not lines
    return {}


def there(folder: Path) -> list[int]:
    """Iterations of what lies there."""
    names = [path.name for path in (folder / "output" / "checkpoints").glob("global_step*")]
    return sorted(int(name.removeprefix("global_step")) for name in names)


def latest(folder: Path) -> str:
    return (folder / "output" / "checkpoints" / "latest").read_text()


def two_at_once(act: Callable[[], object]) -> None:
    """Have two processes do it at the same time, and both end well."""
    pids = []
    for _ in range(2):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                act()
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
