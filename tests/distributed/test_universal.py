"""Universal checkpoints of real trainings: as DeepSpeed converts and loads them, and back."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.modern import WITH_NORMS
from tests.distributed.pool import Pool
from tests.distributed.whole_training import TINY, Seen, run_training, write_corpus

pytestmark = pytest.mark.distributed

PLAIN = {
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "micro_batch_size": 1,
    "make_vocab_size_divisible_by": 24,  # 64 tokens: 72 rows for one tensor rank, 96 for two
    "adam_eps": 1e-2,  # keeps Adam from making steps of gradients that are rounding alone
}
THREE_D = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}
#: Name -> ranks, options.
SAVED: dict[str, tuple[int, dict[str, Any]]] = {
    "fp32, TP2 PP2": (4, {**THREE_D, "position_embedding_type": "absolute"}),
    "bf16, TP2 PP2 DP2": (8, {**THREE_D, "bf16": True, "embed_layernorm": True}),
    "modern, TP2 PP2": (4, {**THREE_D, **WITH_NORMS}),
    "sgd": (2, {"optimizer": "sgd"}),
}
STEP = 2


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def saved(pool: Pool, corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`saved(name)`: the folder of a checkpoint, saved after 2 of 4 steps, and the losses of all of them."""
    there: dict[str, tuple[Path, list[float]]] = {}

    def folder_and_losses(name: str) -> tuple[Path, list[float]]:
        if name not in there:
            ranks, options = SAVED[name]
            root = tmp_path_factory.mktemp("saved")
            training = {**PLAIN, **options, "data_path": [corpus], "train_iters": 4, "save_interval": STEP}
            seen: list[Seen] = pool.run(ranks, run_training, {**training, "save": str(root)})
            assert [rank.status for rank in seen] == [0] * ranks, [rank.errors for rank in seen]
            there[name] = (root / f"global_step{STEP}", seen[-1].losses)
        return there[name]

    return folder_and_losses


def convert(folder: Path, output: Path, to: str, **layout: int) -> Any:
    """Run the program of `opsctl checkpoints convert` in this process, and return its result."""
    from trainer.convert.conversion import to_native, to_universal
    from trainer.convert.sources import open_source

    if to == "universal":
        return to_universal(open_source(folder), output, 2)
    return to_native(open_source(folder), {"tensor": 1, "pipeline": 1, "data": 1, **layout}, output, 2)


def convert_with_deepspeed(folder: Path, output: Path) -> None:
    """As `python -m deepspeed.checkpoint.ds_to_universal`, with one process."""
    from deepspeed.checkpoint import ds_to_universal

    names = {"input_folder": str(folder), "output_folder": str(output), "keep_temp_folder": False, "strict": True}
    workers = {"num_extract_workers": 1, "num_merge_workers": 1, "inject_missing_state": False}
    ds_to_universal.main(argparse.Namespace(**names, **workers))


def files_in(folder: Path, pattern: str = "*.pt") -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob(pattern)}


def differences(one: Path, other: Path) -> list[str]:
    """Every value by which the files of torch's in two folders differ: keys, shapes, types, bits."""
    import torch

    assert files_in(one) == files_in(other)
    found: list[str] = []
    for name in sorted(files_in(one)):
        mine, theirs = (torch.load(folder / name, weights_only=False) for folder in (one, other))
        found += _differences(mine, theirs, name)
    return found


def _differences(one: Any, other: Any, place: str) -> list[str]:
    import torch

    if type(one) is not type(other):
        return [f"{place}: {type(one)}, {type(other)}"]
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        bits = [value.detach().reshape(-1).contiguous().view(torch.uint8) for value in (one, other)]
        return [] if same and torch.equal(*bits) else [place]
    if isinstance(one, dict):
        if list(one) != list(other):
            return [f"{place}: {list(one)}, {list(other)}"]
        return [found for key in one for found in _differences(one[key], other[key], f"{place}: {key}")]
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return [f"{place}: {len(one)}, {len(other)}"]
        pairs = enumerate(zip(one, other, strict=True))
        return [found for number, pair in pairs for found in _differences(*pair, f"{place}[{number}]")]
    if type(one).__name__ == "LossScaler":
        return _differences(vars(one), vars(other), place)
    return [] if one == other else [f"{place}: {one}, {other}"]


@pytest.mark.parametrize("name", ["fp32, TP2 PP2", "bf16, TP2 PP2 DP2", "modern, TP2 PP2"])
def test_every_file_is_what_deepspeeds_own_conversion_writes(saved: Any, tmp_path: Path, name: str) -> None:
    folder, _ = saved(name)
    said = convert(folder, tmp_path / "ours", "universal")
    convert_with_deepspeed(folder, tmp_path / "theirs")
    assert differences(tmp_path / "ours", tmp_path / "theirs") == []
    assert said.files == len(files_in(tmp_path / "ours"))


def test_files_of_twelve_data_ranks_are_put_together_in_the_ranks_order(saved: Any, tmp_path: Path) -> None:
    """Sorted by name, rank 10 comes before rank 2."""
    folder, _ = saved("fp32, TP2 PP2")
    convert(folder, tmp_path / "twelve", "native", data=12)
    twelve = tmp_path / "twelve" / folder.name
    convert(twelve, tmp_path / "ours", "universal")
    convert_with_deepspeed(twelve, tmp_path / "theirs")
    assert differences(tmp_path / "ours", tmp_path / "theirs") == []


def test_padding_of_several_ranks_is_no_reason_to_fail_where_deepspeeds_conversion_does(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    """12 data ranks share 52 elements that do not decay. Three whole partitions are padding, BF16_Optimizer counts all
    of it as the last rank's, and ds_to_universal takes it off that one's.
    """
    model = {"num_layers": 1, "hidden_size": 4, "ffn_hidden_size": 8, "bf16": True}
    training = {**PLAIN, **model, "data_path": [corpus], "train_iters": 1, "save": str(tmp_path / "saved")}
    (seen,) = pool.run(1, run_training, training)
    assert seen.status == 0, seen.errors
    folder = tmp_path / "saved" / "global_step1"
    convert(folder, tmp_path / "twelve", "native", data=12)
    twelve = tmp_path / "twelve" / folder.name
    with pytest.raises(RuntimeError, match=r"narrow\(\): length must be non-negative"):
        convert_with_deepspeed(twelve, tmp_path / "theirs")
    convert(twelve, tmp_path / "ours", "universal")
    convert(tmp_path / "ours", tmp_path / "again", "native")
    assert differences(folder, tmp_path / "again" / folder.name) == []


@pytest.mark.parametrize("name", SAVED)
def test_there_and_back_is_the_same_checkpoint_bit_for_bit(saved: Any, tmp_path: Path, name: str) -> None:
    folder, _ = saved(name)
    before = json.loads((folder / "manifest.json").read_text())
    layout = {part: before["layout"][part] for part in ("tensor", "pipeline", "data")}
    convert(folder, tmp_path / "universal", "universal")
    convert(tmp_path / "universal", tmp_path / "native", "native", **layout)
    again = tmp_path / "native" / folder.name
    assert differences(folder, again) == []
    assert (tmp_path / "native" / "latest").read_text() == folder.name
    after = json.loads((again / "manifest.json").read_text())
    assert [start["kind"] for start in after["history"]] == ["began", "converted", "converted"]
    for part in ("files", "history", "saved"):
        before.pop(part), after.pop(part)
    assert before == after


def losses_by_deepspeed(root: str, changes: dict[str, Any]) -> list[float]:
    """Of three steps, in a rank, by an engine that DeepSpeed's own loader has filled from the latest in `root`."""
    from tests.distributed.tiny_training import step_items, tiny_engine
    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(**{**TINY, **PLAIN, "train_iters": 20, **changes})
    path, _ = engine.load_checkpoint(root)
    assert path is not None
    losses = []
    for step in range(3):
        items = iter(step_items(options, parallel, step)) if parallel.needs_data else None
        losses.append(train_step(engine, items, options.lr).loss)
    return losses


def loading_universal(tmp_path: Path) -> dict[str, Any]:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"checkpoint": {"load_universal": True}}))
    return {"deepspeed_config": str(config)}


def test_deepspeeds_own_engine_goes_on_from_ours_in_another_layout(pool: Pool, saved: Any, tmp_path: Path) -> None:
    name = "fp32, TP2 PP2"
    folder, _ = saved(name)
    ranks, options = SAVED[name]
    convert(folder, tmp_path / "universal", "universal")
    (folder.parent / "latest").write_text(folder.name)
    expected = pool.run(ranks, losses_by_deepspeed, str(folder.parent), options)[0]
    other = {**options, "tensor_model_parallel_size": 1, **loading_universal(tmp_path)}  # so DP2
    assert pool.run(4, losses_by_deepspeed, str(tmp_path), other)[0] == pytest.approx(expected, rel=1e-6)


def test_deepspeeds_own_engine_takes_a_native_one_for_what_the_universal_one_is(
    pool: Pool, saved: Any, tmp_path: Path
) -> None:
    """Written for one rank from the same eight ranks' files, and the same to the bit."""
    folder, _ = saved("bf16, TP2 PP2 DP2")
    options = {"bf16": True, "embed_layernorm": True}
    convert(folder, tmp_path / "universal", "universal")
    convert(folder, tmp_path / "native", "native")
    universal = pool.run(1, losses_by_deepspeed, str(tmp_path), {**options, **loading_universal(tmp_path)})
    assert universal == pool.run(1, losses_by_deepspeed, str(tmp_path / "native"), options)


def test_a_training_goes_on_from_what_deepspeeds_conversion_wrote(
    pool: Pool, corpus: str, saved: Any, tmp_path: Path
) -> None:
    """Which has no manifest: counters, schedule and model are those that the training itself has put into the files."""
    name = "fp32, TP2 PP2"
    folder, losses = saved(name)
    convert_with_deepspeed(folder, tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "native", "native", pipeline=2)
    model = {key: value for key, value in SAVED[name][1].items() if key != "tensor_model_parallel_size"}
    training = {**PLAIN, **model, "data_path": [corpus], "train_iters": 4, "load": str(tmp_path / "native")}
    seen = pool.run(2, run_training, training)
    assert [rank.status for rank in seen] == [0, 0], [rank.errors for rank in seen]
    assert seen[-1].losses == pytest.approx(losses[STEP:], rel=1e-6)
