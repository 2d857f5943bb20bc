"""What each kind of program has saved, and what its log reports, on the files and lines that the programs write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter, save

from opsctl.run.config.schema import COMMAND, KINDS_OF_PROGRAMS
from opsctl.run.programs import command, lightning, litgpt, megatron_lm, nemo, torchtitan, transformers
from opsctl.run.programs.kind import Kind, Progress, found
from opsctl.run.programs.registry import KINDS

WEIGHTS = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(3)}


def a_transformers_checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    save_file(WEIGHTS, str(path / "model.safetensors"))
    torch.save({"state": {}}, path / "optimizer.pt")
    torch.save({"last_epoch": step}, path / "scheduler.pt")
    torch.save({"python": 1}, path / "rng_state_0.pth")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": 40}))
    return path


def a_lightning_checkpoint(folder: Path, step: int, name: str = "") -> Path:
    path = folder / (name or f"epoch=0-step={step}.ckpt")
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"epoch": 0, "global_step": step, "pytorch-lightning_version": "2.6.6", "state_dict": WEIGHTS}, path)
    return path


def a_litgpt_checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"step-{step:08d}"
    path.mkdir(parents=True)
    torch.save({"model": WEIGHTS}, path / "lit_model.pth")
    (path / "model_config.yaml").write_text("name: pythia\n")
    return path


def a_distributed_checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"step-{step}"
    save(dict(WEIGHTS), storage_writer=FileSystemWriter(path), no_dist=True)
    return path


def a_megatron_checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"iter_{step:07d}" / "mp_rank_00"
    path.mkdir(parents=True)
    torch.save({"model": WEIGHTS}, path / "model_optim_rng.pt")
    (folder / megatron_lm.TRACKER).write_text(str(step))
    return path.parent


MAKERS = {
    transformers.KIND: a_transformers_checkpoint,
    lightning.KIND: a_lightning_checkpoint,
    nemo.KIND: a_lightning_checkpoint,
    litgpt.KIND: a_litgpt_checkpoint,
    torchtitan.KIND: a_distributed_checkpoint,
    megatron_lm.KIND: a_megatron_checkpoint,
}


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


#: Ways to spoil a file.
DAMAGES: tuple[Callable[[Path], None], ...] = (half, lambda path: path.unlink())


def newest(kind: Kind, folder: Path) -> list[tuple[int, bool]]:
    return [(one.iteration, one.problem is None) for one in found(folder.iterdir(), kind.judge)]


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.name)
def test_complete_checkpoints_are_found_newest_first_and_other_files_are_ignored(kind: Kind, tmp_path: Path) -> None:
    for step in (2, 10, 4):
        MAKERS[kind](tmp_path, step)
    if kind is megatron_lm.KIND:
        (tmp_path / megatron_lm.TRACKER).write_text("10")
    (tmp_path / "runs").mkdir()
    (tmp_path / "config.json").write_text("{}")
    assert newest(kind, tmp_path) == [(10, True), (4, True), (2, True)]


@pytest.mark.parametrize(
    ("kind", "torn"),
    [
        (transformers.KIND, ["model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"]),
        (litgpt.KIND, ["lit_model.pth"]),
        (torchtitan.KIND, [".metadata"]),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_a_checkpoint_with_any_torn_or_missing_file_is_not_complete(
    kind: Kind, torn: list[str], tmp_path: Path
) -> None:
    for name in torn:
        for number, damage in enumerate(DAMAGES):
            folder = tmp_path / name / str(number)
            if kind is transformers.KIND and name in ("optimizer.pt", "scheduler.pt") and damage is not half:
                continue  # save_only_model=True
            damage(MAKERS[kind](folder, 8) / name)
            assert newest(kind, folder) == [(8, False)], (name, number)


def test_transformers_unfinished_saves_and_shards(tmp_path: Path) -> None:
    path = a_transformers_checkpoint(tmp_path, 7)
    (path / "checkpoint-is-incomplete.txt").touch()
    assert newest(transformers.KIND, tmp_path) == [(7, False)]
    (path / "checkpoint-is-incomplete.txt").unlink()
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"w": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert newest(transformers.KIND, tmp_path) == [(7, False)]
    save_file(WEIGHTS, str(path / "model-00002-of-00002.safetensors"))
    assert newest(transformers.KIND, tmp_path) == [(7, True)]
    path.rename(tmp_path / "checkpoint-8")  # a folder of that name with another step's state
    assert newest(transformers.KIND, tmp_path) == [(8, False)]


def test_lightnings_step_is_read_from_the_file_not_from_its_name(tmp_path: Path) -> None:
    a_lightning_checkpoint(tmp_path, 300, "last.ckpt")
    a_lightning_checkpoint(tmp_path, 70_000, "last-v1.ckpt")
    half(a_lightning_checkpoint(tmp_path, 80_000))
    assert newest(lightning.KIND, tmp_path) == [(80_000, False), (70_000, True), (300, True)]


def test_every_kind_has_its_name() -> None:
    assert {*KINDS, COMMAND} == set(KINDS_OF_PROGRAMS) and all(name == kind.name for name, kind in KINDS.items())


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (open, (str(tmp_path / "executed"), "w"))  # type: ignore[return-value]

    torch.save({"global_step": 5, "callbacks": Evil()}, tmp_path / "last.ckpt")
    assert newest(lightning.KIND, tmp_path) == [(5, True)]
    assert not (tmp_path / "executed").exists()


def test_a_distributed_checkpoint_without_one_of_its_files_is_not_complete(tmp_path: Path) -> None:
    path = a_distributed_checkpoint(tmp_path, 20)
    next(path.glob("*.distcp")).unlink()
    assert newest(torchtitan.KIND, tmp_path) == [(20, False)]


def a_core_checkpoint(path: Path) -> Path:
    """Make the files of megatron.core's dist_checkpointing: torch's distributed checkpoint and two files more."""
    save(dict(WEIGHTS), storage_writer=FileSystemWriter(path), no_dist=True)
    torch.save({"iteration": 20}, path / "common.pt")
    (path / "metadata.json").write_text('{"sharded_backend": "torch_dist", "common_backend": "torch"}')
    return path


@pytest.mark.parametrize("damage", DAMAGES, ids=["half", "removed"])
@pytest.mark.parametrize("kind", [torchtitan.KIND, megatron_lm.KIND, nemo.KIND], ids=lambda kind: kind.name)
def test_a_distributed_checkpoint_is_complete_only_with_every_file_whole(
    kind: Kind, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    """torch 2.13 and megatron-core 0.16.1 load none of these. NeMo, which saves with megatron-core, was not tried."""
    names = {
        torchtitan.KIND: "step-20",
        megatron_lm.KIND: "iter_0000020",
        nemo.KIND: "gpt--val_loss=1.20-step=20-consumed_samples=160.0/weights",
    }
    path = tmp_path / names[kind]
    a_core_checkpoint(path)
    (tmp_path / megatron_lm.TRACKER).write_text("20")
    assert newest(kind, tmp_path) == [(20, True)]
    for file in sorted(path.iterdir()):
        if kind is torchtitan.KIND and file.suffix in (".pt", ".json"):
            continue
        whole = file.read_bytes()
        damage(file)
        assert newest(kind, tmp_path) == [(20, False)], file.name
        file.write_bytes(whole)


def test_metadata_that_lacks_only_its_end_is_damaged(tmp_path: Path) -> None:
    path = a_distributed_checkpoint(tmp_path, 20) / ".metadata"
    path.write_bytes(path.read_bytes()[:-1])
    assert newest(torchtitan.KIND, tmp_path) == [(20, False)]


def test_megatrons_older_format_needs_a_whole_file_of_a_rank(tmp_path: Path) -> None:
    path = a_megatron_checkpoint(tmp_path, 20) / "mp_rank_00" / "model_optim_rng.pt"
    half(path)
    assert newest(megatron_lm.KIND, tmp_path) == [(20, False)]
    path.unlink()
    assert newest(megatron_lm.KIND, tmp_path) == [(20, False)]


def test_megatrons_tracker_decides_and_nemos_marker(tmp_path: Path) -> None:
    for step in (100, 200):
        a_megatron_checkpoint(tmp_path, step)
    (tmp_path / megatron_lm.TRACKER).write_text("100")
    assert newest(megatron_lm.KIND, tmp_path) == [(200, False), (100, True)]
    saved = a_lightning_checkpoint(tmp_path / "nemo", 30)
    saved.with_name(f"{saved.stem}-unfinished").touch()
    assert [one.problem is None for one in found([saved], nemo.KIND.judge)] == [False]


def test_any_command_is_described_by_its_table(tmp_path: Path) -> None:
    kind = command.kind_of(
        "SIGTERM",
        ["meta.json", "*.pt"],
        r"step (?P<iteration>\d+)/(?P<total>\d+) loss (?P<loss>\S+)",
        ["--from", "{checkpoint}"],
    )
    path = tmp_path / "ckpt_12"
    path.mkdir()
    assert newest(kind, tmp_path) == [(12, False)]
    (path / "meta.json").write_text("{}")
    torch.save(WEIGHTS, path / "rank0.pt")
    assert newest(kind, tmp_path) == [(12, True)]
    half(path / "rank0.pt")
    assert newest(kind, tmp_path) == [(12, False)]
    assert kind.progress("[rank 0] step 12/40 loss 3.5") == Progress(12, 40, loss=3.5)
    assert kind.progress("step x/40") is None and kind.progress("") is None
    assert kind.resume(path) == ["--from", str(path)]


def test_the_step_of_a_single_file_is_read_from_inside(tmp_path: Path) -> None:
    kind = command.kind_of(None, [], None, [], is_single=True)
    path = tmp_path / "ckpt.pt"
    optimizer = {"state": {0: {"step": torch.tensor(7.0), "exp_avg": torch.zeros(2)}}}
    torch.save({"model": WEIGHTS, "optimizer": optimizer, "iter_num": 250, "best_val_loss": torch.tensor(1.5)}, path)
    torch.save({"model": WEIGHTS}, tmp_path / "model.pt")
    assert newest(kind, tmp_path) == [(250, True)]
    half(path)
    assert newest(kind, tmp_path) == [(0, False)]


@pytest.mark.parametrize(
    ("kind", "line", "progress"),
    [
        (
            transformers.KIND,
            "{'loss': '4.178', 'grad_norm': '0.7837', 'learning_rate': '2.5e-05', 'epoch': '0.6562'}",
            Progress(loss=4.178, grad_norm=0.7837, learning_rate=2.5e-05),
        ),
        (transformers.KIND, "{'loss': 4.178, 'grad_norm': nan, 'epoch': 1}", None),
        (transformers.KIND, "{'eval_loss': '4.178', 'eval_runtime': '0.0167', 'epoch': '0.625'}", None),
        (transformers.KIND, "{'train_runtime': '2.895', 'train_loss': '4.166', 'epoch': '1.25'}", None),
        (
            transformers.KIND,
            "\r 52%|█████▎    | 21/40 [00:00<00:00, 160.57it/s]\r 55%|█████▌    | 22/40 [00:00<00:00, 2.00s/it]",
            Progress(22, 40),
        ),
        (transformers.KIND, "Writing model shards: 100%|██████████| 1/1 [00:00<00:00, 530.45it/s]", None),
        (
            lightning.KIND,
            "Epoch 2:  31%|███▏      | 5/16 [00:02<00:04,  2.00it/s, v_num=0, loss=0.884]",
            Progress(37, loss=0.884, seconds_per_iteration=0.5),
        ),
        (lightning.KIND, "Validation DataLoader 0: 100%|██████████| 2/2 [00:00<00:00, 1476.61it/s]", None),
        (
            litgpt.KIND,
            "Epoch 1 | iter 20 step 10 | loss train: 4.307, val: n/a | iter time: 2.50 ms (step) remaining time: 0:00",
            Progress(10, loss=4.307, seconds_per_iteration=0.005),
        ),
        (litgpt.KIND, "iter 20: val loss 4.2409, val time: 1.46 ms", None),
    ],
)
def test_progress_is_read_from_the_lines_that_the_programs_print(
    kind: Kind, line: str, progress: Progress | None
) -> None:
    assert kind.progress(line) == progress
