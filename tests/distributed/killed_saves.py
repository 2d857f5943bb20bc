"""Saves killed at every call that changes a file, in processes forked from one that has imported torch once.

`python -m tests.distributed.killed_saves FOLDER NAME...` runs the scenarios of those names and prints a JSON object:
name -> {"calls": [...], "wrong": [...]}. What is saved is small and its own; what saves is the trainer's, from making
room to `latest`, on real gloo ranks.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.killed import Watched

_SWAP = ("renameat2",)


@dataclass(frozen=True)
class Scenario:
    """The checkpoints before the save that is killed, and the way that it is made."""

    before: tuple[int, ...] = ()  # saved in this order; an iteration twice replaces the first one
    latest: int | None = None  # repointed to this one then
    iteration: int = 4
    ranks: int = 1
    killed_rank: int = 0
    beside: bool = False  # written by a thread
    without: tuple[str, ...] = ()
    cut_off_at: str | None = None  # the save was killed before, at the last call that begins so: this one finds that


SCENARIOS = {
    "first": Scenario(),
    "next": Scenario(before=(2,)),
    "next, beside": Scenario(before=(2,), beside=True),
    "over an existing one": Scenario(before=(2, 4), latest=2),
    "over an existing one, beside": Scenario(before=(2, 4), latest=2, beside=True),
    "over the latest": Scenario(before=(2, 4)),
    "no swap: over an existing one": Scenario(before=(2, 4), latest=2, without=_SWAP),
    "no swap: over the latest": Scenario(before=(2, 4), without=_SWAP, beside=True),
    "no swap: after a kill between the renames": Scenario(
        before=(2, 4), without=_SWAP, cut_off_at="rename .tmp-global_step4"
    ),
    "no swap: after a kill while the replaced one goes": Scenario(
        before=(2, 4), without=_SWAP, cut_off_at="unlinkat .tmp-replaced"
    ),
    "two ranks, the first": Scenario(before=(2,), ranks=2),
    "two ranks, the second, beside": Scenario(before=(2,), ranks=2, killed_rank=1, beside=True),
}


def save(root: Path, store: Path, iteration: int, content: int, scenario: Scenario, rank: int) -> None:
    """One rank's part of a save, as `trainer.checkpoint.save` puts it together. `content` tells it from others."""
    import torch
    import torch.distributed as dist

    from trainer.checkpoint.destination import Destination
    from trainer.checkpoint.publish import make_room, publish, write
    from trainer.checkpoint.save import BackgroundWrite, SaveUnderWay
    from trainer.core.files import HeldFolder
    from trainer.formats.checkpoint.manifest import Manifest, SavedFile

    dist.init_process_group(
        "gloo", store=dist.FileStore(str(store), scenario.ranks), rank=rank, world_size=scenario.ranks
    )
    counters: dict[str, Any] = dict.fromkeys(
        ("consumed_train_samples", "consumed_train_tokens", "consumed_valid_samples"), content
    )
    manifest = Manifest(
        iteration=iteration, **counters, precision="fp32", layout={}, model={}, learning_rate={}, files={}
    )
    states: dict[str, Callable[[], Any]] = {
        f"layer_{rank:02d}-model_00-model_states.pt": lambda: {"weight": torch.full((300_000,), float(content))},
        f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": lambda: {"step": content},
    }
    destination = Destination(HeldFolder(root))
    name = make_room(destination, iteration)

    def written() -> Mapping[str, SavedFile]:
        return write(states, destination.folder.place() / name)

    if scenario.beside:
        write_beside = BackgroundWrite(written)
        SaveUnderWay(destination, name, manifest, write_beside, 0.0, torch.device("cpu")).publish()
    else:
        publish(destination, name, manifest, written)


class Sweep:
    """One scenario, killed at one call after the other."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self._folder, self._scenario = folder, scenario
        self._stores = 0
        self._contents = 0
        self.calls: list[str] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        """Fill `calls` with those of a save that no one kills, and `wrong` with what does not hold after a kill."""
        scenario, prepared = self._scenario, self._folder / "prepared"
        prepared.mkdir(parents=True)
        for iteration in scenario.before:
            self._save(prepared, iteration)
        if scenario.latest is not None:
            (prepared / "latest").write_text(f"global_step{scenario.latest}")
        if scenario.cut_off_at is not None:
            self._cut_off(prepared, scenario.cut_off_at)
        self.calls = self._save(self._copy(prepared), scenario.iteration).calls
        for number, call in enumerate(self.calls):
            root = self._copy(prepared)
            before = whole(root)
            watched = self._save(root, scenario.iteration, number)
            # The rank that comes first makes the folder, so that one of two may have made a call less.
            was_killed = watched.status == -9 or (scenario.ranks > 1 and len(watched.calls) <= number)
            problems = [*([] if was_killed else [f"status {watched.status}"]), *self._look(root, before)]
            self.wrong += [f"killed at {number} ({call}): {problem}" for problem in problems]

    def _cut_off(self, prepared: Path, at: str) -> None:
        """Leave what a save leaves that is killed at the last call that begins so."""
        calls = self._save(self._copy(prepared), self._scenario.iteration).calls
        last = max(number for number, call in enumerate(calls) if call.startswith(at))
        self._save(prepared, self._scenario.iteration, last)

    def _look(self, root: Path, before: dict[int, int]) -> list[str]:
        """Return the errors after a kill: now, and after the next save."""
        from trainer.formats.checkpoint.manifest import check_checksums, latest_checkpoint
        from trainer.formats.errors import CheckpointError

        problems = []
        own, now = self._contents, whole(root)
        problems += [
            f"{iteration} had {content} and has {now.get(iteration)}"
            for iteration, content in before.items()
            if now.get(iteration) not in (content, own if iteration == self._scenario.iteration else content)
        ]
        try:
            found = latest_checkpoint(root)
            if found is None and before:
                problems.append("no latest")
            if found is not None:
                check_checksums(found.folder, found.manifest)
        except CheckpointError as error:
            problems.append(str(error))
        after = self._save(root, 6)
        names = sorted(path.name for path in root.iterdir() if not path.name.endswith(".py"))
        wanted = sorted({*(f"global_step{iteration}" for iteration in {*now, 6}), "latest"})
        if after.status != 0 or names != wanted or whole(root) != {**now, 6: self._contents}:
            problems.append(f"the next save: status {after.status}, {names}, {whole(root)} instead of {now} and 6")
        return problems

    def _save(self, root: Path, iteration: int, kill_at: int | None = None) -> Watched:
        self._stores += 1
        self._contents += 1
        scenario, store = self._scenario, self._folder / f"store-{self._stores}"
        ranks = [
            partial(save, root, store, iteration, self._contents, scenario, rank) for rank in range(scenario.ranks)
        ]
        killed = ranks.pop(scenario.killed_rank)
        return Watched(killed, root, kill_at, scenario.without, tuple(ranks))

    def _copy(self, prepared: Path) -> Path:
        root = self._folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(prepared, root)
        return root


def whole(root: Path) -> dict[int, int]:
    """Return iteration -> content of each undamaged checkpoint under `root`, also of those set aside."""
    from trainer.formats.checkpoint.manifest import (
        check_checksums,
        check_sizes,
        checkpoint_folders,
        read_manifest,
        set_aside,
    )
    from trainer.formats.errors import CheckpointError

    found: dict[int, int] = {}
    there = checkpoint_folders(root)
    for folder in (*root.glob(f"{set_aside(root / 'x').name[:-1]}*"), *there):
        try:
            manifest = read_manifest(folder)
            check_sizes(folder, manifest)
            check_checksums(folder, manifest)
        except CheckpointError:
            continue
        found[manifest.iteration] = manifest.consumed_train_samples
    return found


def main(folder: Path, names: list[str]) -> dict[str, dict[str, list[str]]]:
    """Run the scenarios."""
    import trainer.checkpoint.save  # noqa: F401 - before the forks

    found = {}
    for number, name in enumerate(names):
        sweep = Sweep(folder / str(number), SCENARIOS[name])
        sweep.run()
        found[name] = {"calls": sweep.calls, "wrong": sweep.wrong}
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as beside:
        answer = main(Path(beside), sys.argv[2:] or list(SCENARIOS))
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
