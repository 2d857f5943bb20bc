"""A save in its three parts: each rank's snapshot, writing it whenever there is time, publishing all of them."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.tiny_training import step_items, tiny_engine
from trainer.core.files import HeldFolder
from trainer.formats.checkpoint.manifest import Manifest

pytestmark = pytest.mark.distributed

LAYOUTS: dict[int, dict[str, Any]] = {
    1: {},
    2: {"bf16": True},
    4: {"bf16": True, "pipeline_model_parallel_size": 2, "micro_batch_size": 1},
}


def manifest_of_step_one() -> Manifest:
    counters: dict[str, Any] = {
        "iteration": 1,
        "consumed_train_samples": 8,
        "consumed_train_tokens": 128,
        "consumed_valid_samples": 0,
    }
    return Manifest(**counters, precision="fp32", layout={}, model={}, learning_rate={}, files={})


def step(options: Any, parallel: Any, engine: Any, number: int) -> float:
    from trainer.engine.build import train_step

    items = iter(step_items(options, parallel, number)) if parallel.needs_data else None
    return train_step(engine, items, options.lr).loss


def save_after_one_step(root: str, changes: dict[str, Any], copied: bool) -> list[float]:
    """Save the state after the first step, written by a thread after two more; the losses of these."""
    from trainer.checkpoint.destination import Destination
    from trainer.checkpoint.publish import make_room, publish, write
    from trainer.engine.snapshot import HostCopies, snapshot

    options, parallel, engine = tiny_engine(**changes)
    step(options, parallel, engine, 0)
    destination = Destination(HeldFolder(Path(root)))
    folder = destination.folder.place() / make_room(destination, 1)
    taken = snapshot(engine, {"iteration": 1}, copies=HostCopies() if copied else None)
    losses = [step(options, parallel, engine, number) for number in (1, 2)]
    with ThreadPoolExecutor(1) as thread:
        publish(destination, folder.name, manifest_of_step_one(), thread.submit(write, taken, folder).result)
    return losses


def losses_after_loading(root: str, changes: dict[str, Any]) -> list[float]:
    """Losses of the second and the third step, by an engine that DeepSpeed's own loader has filled."""
    options, parallel, engine = tiny_engine(**changes)
    path, client_state = engine.load_checkpoint(root)
    assert path is not None and client_state["iteration"] == 1
    return [step(options, parallel, engine, number) for number in (1, 2)]


@pytest.mark.parametrize("ranks", LAYOUTS)
def test_a_copied_snapshot_may_be_written_beside_the_training_and_is_what_deepspeed_loads(
    pool: Pool, tmp_path: Path, ranks: int
) -> None:
    went_on = pool.run(ranks, save_after_one_step, str(tmp_path), LAYOUTS[ranks], True)
    assert pool.run(ranks, losses_after_loading, str(tmp_path), LAYOUTS[ranks]) == went_on


def test_a_plain_snapshot_has_to_be_written_before_the_next_step(pool: Pool, tmp_path: Path) -> None:
    went_on = pool.run(1, save_after_one_step, str(tmp_path), LAYOUTS[1], False)
    assert pool.run(1, losses_after_loading, str(tmp_path), LAYOUTS[1]) != went_on


def bytes_that_a_snapshot_copies(changes: dict[str, Any]) -> tuple[int, int]:
    """(bytes of all weights, bytes of the tensors that a plain snapshot adds to those in memory)."""
    from trainer.engine.snapshot import snapshot

    options, parallel, engine = tiny_engine(**changes)
    step(options, parallel, engine, 0)
    before = _bytes_by_storage()
    taken = snapshot(engine, {})
    added = [size for place, size in _bytes_by_storage().items() if place not in before]
    assert taken
    return sum(one.nbytes for one in engine.module.parameters()), sum(added)


def _bytes_by_storage() -> dict[int, int]:
    """Every tensor's storage in this process: where it begins -> its bytes."""
    import gc

    import torch

    tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]
    return {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}


@pytest.mark.parametrize("changes", [{}, {"bf16": True}], ids=["fp32", "bf16"])
def test_a_plain_snapshot_holds_no_copy_of_the_weights(pool: Pool, changes: dict[str, Any]) -> None:
    ((weights, copied),) = pool.run(1, bytes_that_a_snapshot_copies, changes)
    assert copied < weights / 100


def write_one_after_the_other(root: str) -> list[str]:
    """Rank 1 waits with its write until rank 0 has ended its own; the names that both have written."""
    from trainer.checkpoint.destination import Destination
    from trainer.checkpoint.publish import make_room, publish, write
    from trainer.engine.snapshot import snapshot

    _, _, engine = tiny_engine(bf16=True)
    destination, turn = Destination(HeldFolder(Path(root))), Path(root) / "rank 0 has written"
    folder = destination.folder.place() / make_room(destination, 1)
    taken = snapshot(engine, {})
    if os.environ["RANK"] == "1":
        until = time.monotonic() + 30
        while not turn.exists():
            assert time.monotonic() < until, "rank 0 waits for rank 1"
            time.sleep(0.01)
    written = write(taken, folder)
    turn.touch()
    publish(destination, folder.name, manifest_of_step_one(), lambda: written)
    return sorted(written)


def test_no_rank_waits_for_another_while_it_writes(pool: Pool, tmp_path: Path) -> None:
    first, second = pool.run(2, write_one_after_the_other, str(tmp_path))
    assert second and not set(first) & set(second)
    on_disk = sorted(path.name for path in (tmp_path / "global_step1").iterdir())
    assert on_disk == sorted([*first, *second, "manifest.json"])


def save_twice(ours: str, deepspeeds: str, changes: dict[str, Any]) -> None:
    """Return the same state saved by us and by DeepSpeed alone."""
    from trainer.checkpoint.destination import Destination
    from trainer.checkpoint.save import save_checkpoint

    options, parallel, engine = tiny_engine(**changes)
    step(options, parallel, engine, 0)
    state = {"iteration": 1, "args": dict(options)}
    save_checkpoint(engine, Destination(HeldFolder(Path(ours))), manifest_of_step_one(), state)
    engine.save_checkpoint(deepspeeds, tag="global_step1", client_state=state)


def same(one: Any, other: Any) -> bool:
    """Return True if two loaded states are equal, tensors bit for bit."""
    import torch

    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (not isinstance(one, int | float | str) or one == other)


@pytest.mark.parametrize("ranks", LAYOUTS)
def test_the_files_are_deepspeeds_in_name_place_and_contents(pool: Pool, tmp_path: Path, ranks: int) -> None:
    import torch

    ours, deepspeeds = tmp_path / "ours", tmp_path / "deepspeeds"
    pool.run(ranks, save_twice, str(ours), str(deepspeeds), LAYOUTS[ranks])

    def names(root: Path) -> set[str]:
        return {str(path.relative_to(root)) for path in root.rglob("*")}

    assert names(ours) == names(deepspeeds) | {"global_step1/manifest.json"}
    assert (ours / "latest").read_text() == (deepspeeds / "latest").read_text()
    for script in ("zero_to_fp32.py", "zero_to_torch.py"):
        assert (ours / script).read_text() == (deepspeeds / script).read_text()
        assert os.access(ours / script, os.X_OK)
    for path in deepspeeds.glob("global_step1/*.pt"):
        saved = torch.load(path, weights_only=False)
        assert same(torch.load(ours / "global_step1" / path.name, weights_only=False), saved), path.name
