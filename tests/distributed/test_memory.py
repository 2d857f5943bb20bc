"""Snapshots in host memory: a restart continues from the newest complete one, and from disk if it is not sound."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool, RanksFailed
from tests.distributed.whole_training import Seen, run_training, write_corpus
from trainer.formats.checkpoint.manifest import fault_of, read_manifest

pytestmark = pytest.mark.distributed

JOB, INTERVAL, KILLED_IN = "77", 2, 8
SNAPSHOT = "global_step6"


def become_a_node(memory: str, nodes: int) -> None:
    """Make each of the ranks the only one of its node; on one node all of them share it."""
    from trainer.checkpoint import memory as module

    rank, is_alone = os.environ["RANK"], nodes > 1
    os.environ |= {"SLURM_JOB_ID": JOB, "SLURMD_NODENAME": f"x{rank if is_alone else 0}"}
    os.environ |= {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"} if is_alone else {}
    setattr(module, "ROOT", Path(memory))  # noqa: B010


def train(options: dict[str, Any], memory: str, disturb: dict[str, Any] | None = None) -> Seen:
    """Train on two nodes, and wait for each snapshot."""
    from trainer.loop.snapshots import Snapshots

    usual = Snapshots.after_step

    def after_step(self: Any, step: Any) -> None:
        usual(self, step)
        if self._under_way is not None:
            self._under_way[1].result()

    setattr(Snapshots, "after_step", after_step)  # noqa: B010
    become_a_node(memory, nodes=2)
    return run_training(options, disturb)


def publish(checkpoints: str, memory: str, nodes: int) -> str:
    """Publish what is in memory, as a restart does; what this rank says."""
    import torch.distributed as dist

    from trainer.checkpoint.destination import Destination
    from trainer.checkpoint.memory import Memory, publish_from_memory
    from trainer.core.files import HeldFolder

    become_a_node(memory, nodes)
    dist.init_process_group("gloo")
    destination = Destination(HeldFolder(Path(checkpoints)))
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        publish_from_memory(Memory.of(destination), destination)
    return said.getvalue()


def options_for(corpus: str, checkpoints: Path, **more: Any) -> dict[str, Any]:
    places = {"save": str(checkpoints), "load": str(checkpoints)}
    return {"data_path": [corpus], "train_iters": 10, "bf16": True, "save_interval": 5, **places, **more}


@dataclass
class Killed:
    """The folders of a training whose last rank was killed in step 8."""

    memory: Path
    checkpoints: Path

    def copied(self, to: Path) -> Killed:
        copy = Killed(to / "memory", to / "checkpoints")
        shutil.copytree(self.checkpoints, copy.checkpoints)
        copy.memory.mkdir()
        for folder in self.memory.iterdir():
            words = folder.name.split(".")
            words[2] = f"{copy.checkpoints.stat().st_ino:x}"
            shutil.copytree(folder, copy.memory / ".".join(words))
        return copy

    def pieces(self, rank: int) -> list[Path]:
        return sorted(self.memory.glob(f"*/{SNAPSHOT}.rank{rank}"))

    def latest(self) -> str:
        return (self.checkpoints / "latest").read_text().strip()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def killed(pool: Pool, corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("killed")
    made = Killed(folder / "memory", folder / "checkpoints")
    made.memory.mkdir()
    options = options_for(corpus, made.checkpoints, snapshot_interval=INTERVAL)
    with pytest.raises(RanksFailed):
        pool.run(2, train, options, str(made.memory), {"after_step": KILLED_IN, "kill_rank": 1})
    assert made.latest() == "global_step5"
    return made


def test_a_restart_from_memory_has_the_losses_of_a_resume_from_disk_and_leaves_nothing_behind(
    pool: Pool, corpus: str, killed: Killed, tmp_path: Path
) -> None:
    on_disk = options_for(corpus, tmp_path / "disk", save_interval=6)
    whole = pool.run(2, run_training, on_disk)
    (tmp_path / "disk" / "latest").write_text(SNAPSHOT)
    resumed = pool.run(2, run_training, on_disk)
    copy = killed.copied(tmp_path)
    assert {folder.stat().st_mode & 0o777 for folder in copy.memory.iterdir()} == {0o700}
    assert {path.stat().st_mode & 0o077 for path in copy.memory.rglob("*")} == {0}
    found = pool.run(2, train, options_for(corpus, copy.checkpoints, snapshot_interval=INTERVAL), str(copy.memory))
    assert [one.status for one in found] == [0, 0], found[0].errors
    assert "memory: iteration 6" in found[0].output
    assert [one.losses for one in found] == [one.losses for one in resumed] == [one.losses[6:] for one in whole]
    assert list(copy.memory.iterdir()) == []
    assert fault_of(copy.checkpoints / SNAPSHOT) is None
    manifest = read_manifest(copy.checkpoints / "global_step10")
    assert [(one.iteration, one.from_memory) for one in manifest.history] == [(0, False), (6, True)]
    saved = read_manifest(copy.checkpoints / SNAPSHOT).saved
    assert saved is not None and saved.from_memory


def _damage(path: Path) -> None:
    file = max((one for one in path.iterdir() if one.suffix == ".pt"), key=lambda one: one.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _claim_another_attempt(path: Path) -> None:
    piece = json.loads((path / "piece.json").read_text())
    (path / "piece.json").write_text(json.dumps({**piece, "attempt": "0" * 16}))


def _link(path: Path) -> None:
    file = next(one for one in path.iterdir() if one.suffix == ".pt")
    shutil.move(file, path.parent / "elsewhere")
    file.symlink_to(path.parent / "elsewhere")


def _open_to_all(path: Path) -> None:
    path.parent.chmod(0o755)


def _of_another_run(path: Path) -> None:
    words = path.parent.name.split(".")
    path.parent.rename(path.parent.with_name(".".join((*words[:2], "abc", *words[3:]))))


def _behind_a_link(path: Path) -> None:
    elsewhere = path.parent.with_name(f"kept-{path.parent.name}")
    path.parent.rename(elsewhere)
    path.parent.symlink_to(elsewhere)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_damage, "checksum"),
        (shutil.rmtree, "missing"),
        (_claim_another_attempt, "no piece"),
        (_link, "own file"),
        (_open_to_all, "not read"),
        (_behind_a_link, "not read"),
        (_of_another_run, ""),
    ],
)
def test_a_set_without_a_sound_piece_of_each_rank_is_not_used(
    pool: Pool, killed: Killed, tmp_path: Path, spoil: Callable[[Path], Any], says: str
) -> None:
    copy = killed.copied(tmp_path)
    own_and_copy = copy.pieces(1)
    assert len(own_and_copy) == 2, "the other node has a copy"
    for path in own_and_copy:
        spoil(path)
    for path in copy.memory.glob("*/global_step4.*"):
        shutil.rmtree(path)  # older than the checkpoint on disk all the same
    said = pool.run(2, publish, str(copy.checkpoints), str(copy.memory), 2)
    assert copy.latest() == "global_step5" and not (copy.checkpoints / SNAPSHOT).exists()
    assert says in "".join(said) and "from memory:" not in said[0]


def test_one_copy_of_each_piece_is_enough_also_for_another_number_of_nodes(
    pool: Pool, killed: Killed, tmp_path: Path
) -> None:
    damaged = killed.copied(tmp_path / "damaged")
    _damage(damaged.pieces(0)[0])
    _damage(damaged.pieces(1)[1])
    assert "from memory:" in pool.run(2, publish, str(damaged.checkpoints), str(damaged.memory), 2)[0]
    assert damaged.latest() == SNAPSHOT and fault_of(damaged.checkpoints / SNAPSHOT) is None
    lost = killed.copied(tmp_path / "lost")
    for path in lost.memory.glob("*.x1.*"):
        shutil.rmtree(path)
    pool.run(1, publish, str(lost.checkpoints), str(lost.memory), 1)
    assert lost.latest() == SNAPSHOT and fault_of(lost.checkpoints / SNAPSHOT) is None


def test_a_set_from_before_a_rollback_or_older_than_the_disk_is_not_used(
    pool: Pool, killed: Killed, tmp_path: Path
) -> None:
    copy = killed.copied(tmp_path)
    record = copy.checkpoints / "rollbacks.jsonl"
    record.write_text('{"to": 5, "from": 6}\n')
    assert "went back" in pool.run(2, publish, str(copy.checkpoints), str(copy.memory), 2)[0]
    assert copy.latest() == "global_step5"
    record.unlink()
    (copy.checkpoints / "global_step5").rename(copy.checkpoints / "global_step9")
    manifest = copy.checkpoints / "global_step9" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "iteration": 9}))
    (copy.checkpoints / "latest").write_text("global_step9")
    assert pool.run(2, publish, str(copy.checkpoints), str(copy.memory), 2) == ["", ""]
    assert copy.latest() == "global_step9"


def write_after_the_next_start(checkpoints: str, memory: str) -> tuple[str, list[str]]:
    """Write a snapshot with the writer of an earlier start; its error, and what is then in memory."""
    import torch
    import torch.distributed as dist

    from trainer.checkpoint.destination import Destination
    from trainer.checkpoint.memory import Memory, Writer
    from trainer.core.files import HeldFolder
    from trainer.formats.errors import CheckpointError

    become_a_node(memory, nodes=1)
    dist.init_process_group("gloo")
    destination = Destination(HeldFolder(Path(checkpoints)))
    found = Memory.of(destination)
    manifest = read_manifest(Path(checkpoints) / "global_step5")

    def taken() -> dict[str, Any]:
        return {"a.pt": lambda: torch.zeros(3)}

    stopped = Writer(found.create(), destination, found.nodes)
    stopped.write(taken, manifest)
    found.remove()  # as the next start does
    new = Writer(found.create(), destination, found.nodes)
    error = ""
    try:
        stopped.write(taken, manifest)
    except (CheckpointError, OSError) as caught:
        error = str(caught)
    before = [path.name for path in Path(memory).rglob("*")]
    new.write(taken, manifest)
    assert len(list(Path(memory).rglob("piece.json"))) == 1
    return error, before


def test_a_rank_of_an_earlier_start_writes_no_snapshot_into_a_later_one(
    pool: Pool, killed: Killed, tmp_path: Path
) -> None:
    (memory := tmp_path / "memory").mkdir()
    ((error, before),) = pool.run(1, write_after_the_next_start, str(killed.checkpoints), str(memory))
    assert "No such file" in error
    assert len(before) == 1, "only the folder of the later start"


def write_two_snapshots(checkpoints: str, memory: str, fails_in: str) -> tuple[str, int, list[str]]:
    """Write two snapshots on two nodes, the first without room on one; its error, and the pieces here before and after.

    fails_in: `writing` if there is no room for the rank's own piece, `receiving` if there is none for the copy.
    """
    import errno

    import torch
    import torch.distributed as dist

    from trainer.checkpoint.destination import Destination
    from trainer.checkpoint.memory import Memory, Writer, open_group
    from trainer.core.files import HeldFolder
    from trainer.formats.errors import CheckpointError

    become_a_node(memory, nodes=2)
    dist.init_process_group("gloo")
    destination = Destination(HeldFolder(Path(checkpoints)))
    found = Memory.of(destination)
    writer = Writer(found.create(), destination, found.nodes, open_group())
    manifest = read_manifest(Path(checkpoints) / "global_step5")
    is_full, usual, error = dist.get_rank() == 1, os.posix_fallocate, ""

    def state() -> Any:
        if is_full and fails_in == "writing":
            raise OSError(errno.ENOSPC, "No space left on device")
        return torch.zeros(3)

    def allocate(*arguments: Any) -> None:
        if is_full and fails_in == "receiving":
            raise OSError(errno.ENOSPC, "No space left on device")
        usual(*arguments)

    setattr(os, "posix_fallocate", allocate)  # noqa: B010
    try:
        writer.write(lambda: {f"{dist.get_rank()}.pt": state}, manifest)
    except (CheckpointError, OSError) as caught:
        error = str(caught)
    writer.remove(manifest.iteration)
    before = len(list(writer.folder.place().iterdir()))
    is_full = False
    writer.write(lambda: {f"{dist.get_rank()}.pt": state}, manifest)
    return error, before, sorted(path.parent.name for path in writer.folder.place().glob("*/piece.json"))


@pytest.mark.parametrize("fails_in", ["writing", "receiving"])
def test_no_rank_waits_for_the_snapshot_of_one_whose_memory_is_full(
    pool: Pool, killed: Killed, tmp_path: Path, fails_in: str
) -> None:
    (memory := tmp_path / "memory").mkdir()
    found = pool.run(2, write_two_snapshots, str(killed.checkpoints), str(memory), fails_in)
    assert [before for _, before, _ in found] == [0, 0]
    assert "another rank" in found[0][0] and "No space" in found[1][0]
    assert [after for *_, after in found] == [["global_step5.rank0", "global_step5.rank1"]] * 2


def test_the_name_of_a_strangers_folder_forges_no_line(pool: Pool, killed: Killed, tmp_path: Path) -> None:
    copy = killed.copied(tmp_path)
    words = copy.pieces(0)[0].parent.name.split(".")
    forged = copy.memory / ".".join((*words[:3], "x0", "\n iteration 9 | lm loss: 0 |"))
    forged.mkdir(mode=0o755)
    said = pool.run(1, publish, str(copy.checkpoints), str(copy.memory), 1)[0]
    assert "not read" in said and "\n iteration 9" not in said


def test_a_training_that_ends_for_its_numbers_leaves_no_snapshot(pool: Pool, corpus: str, tmp_path: Path) -> None:
    options = options_for(corpus, tmp_path / "checkpoints", save_interval=5, snapshot_interval=INTERVAL)
    (memory := tmp_path / "memory").mkdir()
    spoilt = {"after_step": 4, "spoil": (1, "weight")}
    found = pool.run(2, train_without_waiting, options, str(memory), spoilt)
    assert [one.status for one in found] == [1, 1]
    assert list(memory.iterdir()) == []


def train_without_waiting(options: dict[str, Any], memory: str, disturb: dict[str, Any]) -> Seen:
    become_a_node(memory, nodes=2)
    return run_training(options, disturb)


def test_snapshots_are_refused_if_two_do_not_fit(pool: Pool, corpus: str, tmp_path: Path) -> None:
    options = options_for(corpus, tmp_path / "checkpoints", snapshot_interval=INTERVAL)
    (memory := tmp_path / "memory").mkdir()
    (seen,) = pool.run(1, train_in_a_full_memory, options, str(memory))
    assert seen.status == 1 and "--snapshot-interval" in seen.errors
    assert list(memory.iterdir()) == []


def train_in_a_full_memory(options: dict[str, Any], memory: str) -> Seen:
    from trainer.checkpoint import memory as module

    become_a_node(memory, nodes=1)
    setattr(module, "memory_lines", lambda: {"MemAvailable": 10_000})  # noqa: B010
    return run_training(options)
