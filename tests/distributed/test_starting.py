"""The start of a training: a named checkpoint, more replicas along a ramp, the command line's settings."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import Seen, run_training, write_corpus

pytestmark = pytest.mark.distributed

RAMPED: dict[str, Any] = {
    "train_samples": 52,
    "rampup_batch_size": [4, 4, 12],
    "micro_batch_size": 2,
    "lr_decay_samples": 52,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def train(pool: Pool, corpus: str, folder: Path, ranks: int = 1, **options: Any) -> Seen:
    given = {"data_path": [corpus], "save": str(folder), "load": str(folder), **options}
    seen: Seen = pool.run(ranks, run_training, given)[0]
    return seen


def history(folder: Path, iteration: int) -> list[dict[str, Any]]:
    said: dict[str, Any] = json.loads((folder / f"global_step{iteration}" / "manifest.json").read_text())
    return list(said["history"])


def test_replicas_that_the_ramps_start_does_not_fit_go_on_once_it_is_behind(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    """Two samples a micro-batch and two replicas take 4, four take 8: the ramp's 4 fits the first alone."""
    whole = train(pool, corpus, tmp_path / "whole", **RAMPED)
    assert whole.status == 0, whole.errors
    refused = train(pool, corpus, tmp_path / "fresh", 4, **RAMPED)
    assert refused.status == 2
    assert re.search(r"--rampup-batch-size, 4 .*--micro-batch-size 2 x DP 4 = 8", refused.errors)
    begun = train(pool, corpus, tmp_path / "run", 2, **RAMPED, exit_interval=2)
    assert begun.batch_sizes == [4, 4]
    too_early = train(pool, corpus, tmp_path / "run", 4, **RAMPED)
    assert too_early.status == 2
    assert re.search(r"--rampup-batch-size at sample 8, 4 ", too_early.errors)
    further = train(pool, corpus, tmp_path / "run", 2, **RAMPED, exit_interval=3)
    assert further.status == 0, further.errors
    grown = train(pool, corpus, tmp_path / "run", 4, **RAMPED)
    assert grown.status == 0, grown.errors
    losses = [*begun.losses, *further.losses, *grown.losses]
    assert [*begun.batch_sizes, *further.batch_sizes, *grown.batch_sizes] == whole.batch_sizes == [4, 4, 4, *[8] * 5]
    assert losses == pytest.approx(whole.losses, rel=1e-6)
    assert "data parallel size 2 -> 4\n" in grown.output


@pytest.fixture(scope="module")
def saved(pool: Pool, corpus: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """Checkpoints of iterations 2 and 4 of 6, and all losses."""
    folder = tmp_path_factory.mktemp("saved")
    options: dict[str, Any] = {"train_iters": 6, "save_interval": 2}
    seen = train(pool, corpus, folder, **options, exit_interval=4)
    assert seen.status == 0, seen.errors
    rest = train(pool, corpus, tmp_path_factory.mktemp("rest"), load=str(folder), train_iters=6)
    return folder, seen.losses + rest.losses


def test_a_named_checkpoint_is_gone_on_from_and_later_starts_go_on_from_what_came_of_it(
    pool: Pool, corpus: str, saved: tuple[Path, list[float]], tmp_path: Path
) -> None:
    other, losses = saved
    options: dict[str, Any] = {"load": str(other), "load_step": 2, "train_iters": 6, "save_interval": 1}
    first = train(pool, corpus, tmp_path, **options, exit_interval=3)
    assert first.status == 0, first.errors
    second = train(pool, corpus, tmp_path, **options)
    assert first.losses + second.losses == losses[2:]
    starts = history(tmp_path, 6)
    assert [(one["kind"], one["iteration"]) for one in starts] == [("began", 0), ("resumed", 2), ("resumed", 3)]
    assert starts[1]["changes"] == [{"name": "load_step", "before": None, "now": 2}] and starts[2]["changes"] == []


def test_a_named_checkpoint_that_is_not_there_or_before_the_latest_is_refused_by_name(
    pool: Pool, corpus: str, saved: tuple[Path, list[float]], tmp_path: Path
) -> None:
    other, losses = saved
    absent = train(pool, corpus, tmp_path, load=str(other), load_step=3, train_iters=6)
    assert absent.status == 1
    assert re.search(rf"--load-step 3: .*{other}.*: global_step4, global_step2", absent.errors)
    copy = tmp_path / "copy"
    shutil.copytree(other, copy)
    earlier = train(pool, corpus, copy, load_step=2, train_iters=6)
    assert earlier.status == 1 and re.search("global_step4 .*iteration 2", earlier.errors)
    (copy / "latest").write_text("global_step2")
    shutil.rmtree(copy / "global_step4")
    again = train(pool, corpus, copy, load_step=2, train_iters=6)
    assert again.losses == losses[2:]


@pytest.mark.parametrize("precision", [{}, {"bf16": True}])
def test_after_a_resume_the_command_lines_settings_count_and_are_said(
    pool: Pool, corpus: str, tmp_path: Path, precision: dict[str, Any]
) -> None:
    """Each setting alone changes the losses after the first further step."""
    begun: dict[str, Any] = {"train_iters": 5, "lr": 0.05, "weight_decay": 0.1, "clip_grad": 0.05, **precision}
    assert train(pool, corpus, tmp_path / "base", **begun, exit_interval=2).status == 0
    usual = train(pool, corpus, tmp_path / "none", load=str(tmp_path / "base"), **begun)
    assert usual.status == 0, usual.errors
    settings: dict[str, Any] = {"weight_decay": 5.0, "clip_grad": 0.0}
    if not precision:
        settings |= {"adam_beta1": 0.1, "adam_beta2": 0.1, "adam_eps": 0.1}
    for name, value in settings.items():
        other = train(pool, corpus, tmp_path / name, load=str(tmp_path / "base"), **{**begun, name: value})
        assert other.status == 0, other.errors
        assert other.losses[0] == usual.losses[0] and other.losses[1:] != usual.losses[1:], name
        assert re.search(rf"global_step2 .*--{name.replace('_', '-')} ", other.output)


def test_without_optimizer_states_bf16_keeps_the_fp32_weights_and_begins_its_moments_anew(
    pool: Pool, corpus: str, tmp_path: Path
) -> None:
    """A step at a learning rate of 0 leaves every fp32 weight as it was loaded, finer than bf16 could hold it."""
    begun: dict[str, Any] = {"train_iters": 4, "bf16": True}
    assert train(pool, corpus, tmp_path / "base", **begun, exit_interval=2).status == 0
    still = {"lr": 0.0, "override_lr_scheduler": True, "no_load_optim": True, "exit_after_iters": 1}
    resumed = train(pool, corpus, tmp_path / "on", load=str(tmp_path / "base"), **{**begun, **still})
    assert resumed.status == 0, resumed.errors
    assert "-> fresh\n" in resumed.output
    unlike, moved, finer, steps = pool.run(
        1, compared, str(tmp_path / "base" / "global_step2"), str(tmp_path / "on" / "global_step3")
    )[0]
    assert (unlike, steps) == ([], {1.0})
    assert moved and finer


def compared(before: str, after: str) -> tuple[list[str], bool, bool, set[float]]:
    """Parameters whose fp32 weights differ; whether moments do; whether bf16 would have lost some of them; steps."""
    import torch

    from trainer.checkpoint.saved_state import SavedState
    from trainer.formats.checkpoint.manifest import read_manifest

    old, new = (SavedState(Path(folder), read_manifest(Path(folder))) for folder in (before, after))
    weights = {name: (old.optimizer(name, "fp32"), new.optimizer(name, "fp32")) for name in old.parameters}
    unlike = [name for name, (one, other) in weights.items() if not torch.equal(one, other)]
    moved = any(not torch.equal(old.optimizer(name, "exp_avg"), new.optimizer(name, "exp_avg")) for name in weights)
    finer = any(not torch.equal(one, one.bfloat16().float()) for one, _ in weights.values())
    return unlike, moved, finer, {float(new.step(name)) for name in weights}
