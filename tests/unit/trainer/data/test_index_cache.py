"""Kept indices: built once, found again, never stale, and never a reason to hang."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.trainer.data.conftest import MakePair, options_for
from trainer.data.build import DataError, build_datasets
from trainer.data.index_cache import IndexCache
from trainer.data.indices import build_order


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each order that was really built."""
    seen: list[int] = []

    def counted(*given: Any) -> Any:
        seen.append(1)
        return build_order(*given)

    monkeypatch.setattr("trainer.data.gpt_dataset.build_order", counted)
    return seen


def first_sample(options: dict[str, Any], samples: int = 20, is_builder: bool = True) -> list[int]:
    train = build_datasets(options, samples, 0, 0, is_builder, lambda: None).train
    assert train is not None
    tokens: list[int] = train[0].tolist()
    return tokens


def test_the_second_start_builds_nothing(make_pair: MakePair, tmp_path: Path, builds: list[int]) -> None:
    options = options_for(data_path=[make_pair("corpus", lengths=[100, 50])])
    assert first_sample(options) == first_sample(options)
    assert len(builds) == 1
    assert (tmp_path / "cache").is_dir()


@pytest.mark.parametrize(
    "change", [{"seed": 5}, {"seq_length": 9}, {"separate_last_epoch_threshold": 0.95}, {"split": "9,1"}]
)
def test_whatever_the_order_hangs_on_makes_another(
    make_pair: MakePair, builds: list[int], change: dict[str, Any]
) -> None:
    options = options_for(data_path=[make_pair("corpus", lengths=[100] * 10)])
    first_sample(options)
    first_sample({**options, **change})
    assert len(builds) == 2


def test_data_prepared_again_is_never_read_in_the_old_order(make_pair: MakePair, builds: list[int]) -> None:
    prefix = make_pair("corpus", lengths=[100, 50])
    options = options_for(data_path=[prefix])
    first_sample(options)
    make_pair("corpus", lengths=[50, 100])
    os.utime(f"{prefix}.bin", ns=(1, 1))
    first_sample(options)
    assert len(builds) == 2


def test_two_ranges_of_one_file_do_not_share_an_order(make_pair: MakePair) -> None:
    prefix = make_pair("corpus", lengths=[100, 100])
    options = options_for(
        data_path=[prefix],
        train_weighted_split_paths=[f"A: 1 0:0.5 {prefix}"],
        valid_weighted_split_paths=[f"B: 1 0.5:1 {prefix}"],
    )
    data = build_datasets(options, 5, 5, 0)
    assert data.train is not None
    assert max(data.train[0]) < 100 <= min(data.valid["B"][0])


def test_ranks_wait_for_the_builder_and_map_its_files(make_pair: MakePair, builds: list[int]) -> None:
    options = options_for(data_path=[make_pair("corpus", lengths=[100, 50])])
    barrier = threading.Barrier(3, timeout=20)
    found: list[list[int]] = []

    def wait() -> None:
        barrier.wait()

    def rank(number: int) -> None:
        train = build_datasets(options, 20, 0, 0, number == 0, wait).train
        assert train is not None
        found.append(train[3].tolist())

    ranks = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(30)
    assert len(found) == 3 and found[0] == found[1] == found[2]
    assert len(builds) == 1


def test_a_builder_that_fails_does_not_leave_the_others_waiting() -> None:
    passed = []
    cache = IndexCache([], True, lambda: passed.append(1))
    with pytest.raises(DataError):
        cache.load_or_build({}, lambda: (_ for _ in ()).throw(DataError("no")))
    assert passed == [1]


def test_where_nothing_can_be_written_every_rank_builds_the_same_and_says_so(
    make_pair: MakePair, tmp_path: Path, builds: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = make_pair("corpus", lengths=[100, 50])
    (tmp_path / "file").touch()
    options = options_for(data_path=[prefix], data_cache_path=str(tmp_path / "file" / "below"))
    assert first_sample(options, is_builder=True) == first_sample(options, is_builder=False)
    assert len(builds) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "give a writable --data-cache-path" in said


def test_beside_unwritable_data_the_order_is_kept_under_the_checkpoints(
    make_pair: MakePair, tmp_path: Path, builds: list[int]
) -> None:
    prefix = make_pair("corpus", lengths=[100, 50])
    (tmp_path / "cache").touch()  # stands where the folder would be; works for root as well
    options = options_for(data_path=[prefix], save=str(tmp_path / "run" / "checkpoints"))
    first_sample(options)
    first_sample(options)
    assert len(builds) == 1
    assert list((tmp_path / "run" / "checkpoints" / "data-cache").glob("*.npy"))


def test_a_kept_file_that_was_cut_short_is_built_again(make_pair: MakePair, tmp_path: Path, builds: list[int]) -> None:
    options = options_for(data_path=[make_pair("corpus", lengths=[100, 50])])
    before = first_sample(options)
    for kept in (tmp_path / "cache").glob("*-sample.npy"):
        kept.write_bytes(kept.read_bytes()[:-8])
    assert first_sample(options) == before
    assert len(builds) == 2


def _build_alone(folder: str, started: Barrier) -> None:
    cache = IndexCache([Path(folder)], True, lambda: None)
    started.wait(20)
    arrays = cache.load_or_build({"same": True}, lambda: {"a": np.arange(200_000)})
    assert arrays["a"].sum() == 200_000 * 199_999 // 2


def test_two_runs_may_build_the_same_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Barrier(4)
    runs = [context.Process(target=_build_alone, args=(str(tmp_path), started)) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join(30)
    assert [run.exitcode for run in runs] == [0] * 4
    assert len(list(tmp_path.iterdir())) == 2
