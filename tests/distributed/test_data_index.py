"""Orders that are built ahead equal the training's, which then builds none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import TINY, run_training, write_corpus
from trainer.data.index import main
from trainer.recipe.options import to_arguments

pytestmark = pytest.mark.distributed


def seen(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every file, and what would show that it was written again."""
    stats = ((one.name, one.stat()) for one in folder.iterdir())
    return {name: (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats}


def contents(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


def test_a_training_finds_all_that_was_built_ahead_at_its_first_start_and_where_it_goes_on(
    pool: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    blend = ["0.3", write_corpus(tmp_path), "0.7", write_corpus(other, documents=90)]
    saved, ahead, own = str(tmp_path / "saved"), tmp_path / "ahead", tmp_path / "own"

    def options(cache: Path, **more: Any) -> dict[str, Any]:
        lengths = {"train_iters": 6, "eval_iters": 1, "eval_interval": 2, "split": "60,20,20"}
        places = {"data_path": blend, "data_cache_path": str(cache), "save": saved, "load": saved}
        return {**places, **lengths, "save_interval": 2, **more}

    def build_ahead(**more: Any) -> None:
        assert main(["--world-size=1", "--", *to_arguments({**TINY, **options(ahead, **more)})]) == 0
        states = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
        assert states == ["built"] * 3, "the blend with its two sources, for three splits"

    def train(cache: Path, **more: Any) -> None:
        (ran,) = pool.run(1, run_training, options(cache, **more))
        assert ran.status == 0 and len(ran.losses) == 2, ran.errors

    build_ahead()
    before = seen(ahead)
    train(ahead, exit_interval=2)
    assert seen(ahead) == before, "it found all of them, and built none"

    # From iteration 2 with larger batches it needs other lengths of the same data.
    shutil.rmtree(ahead)
    larger = {"global_batch_size": 16, "override_lr_scheduler": True}
    build_ahead(**larger)
    train(own, exit_interval=4, **larger)
    assert contents(ahead) == contents(own), "what it builds for itself, byte for byte"
