"""Kept indices: built once, found again, never stale, and never a reason to hang."""

from __future__ import annotations

import multiprocessing
import os
import struct
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

    monkeypatch.setattr("trainer.data.build.build_order", counted)
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


@pytest.mark.parametrize("is_builder", [True, False])
def test_who_fails_does_not_leave_the_others_waiting(tmp_path: Path, is_builder: bool) -> None:
    passed: list[int] = []
    options = options_for(data_path=[str(tmp_path / "nothing")])
    with pytest.raises(DataError, match="nothing"):
        build_datasets(options, 20, 0, 0, is_builder, lambda: passed.append(1))
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
    assert said.count("\n") == 1 and "--data-cache-path" in said


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


def test_a_kept_file_that_is_empty_is_built_again(tmp_path: Path) -> None:
    cache = IndexCache([tmp_path])
    cache.load_or_build({"of": 1}, lambda: {"order": np.arange(10)})
    (kept,) = tmp_path.glob("*.npy")
    kept.write_bytes(b"")
    assert cache.load_or_build({"of": 1}, lambda: {"order": np.arange(10)})["order"].tolist() == list(range(10))
    assert kept.stat().st_size


def _build_alone(folder: str, started: Barrier) -> None:
    cache = IndexCache([Path(folder)])
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


@pytest.fixture
def many(make_pair: MakePair) -> list[str]:
    """Return a blend of twelve pairs, as --data-path has it."""
    return [word for number in range(12) for word in (str(1 + number), make_pair(f"set{number}", lengths=[30, 50]))]


def samples_of(options: dict[str, Any], **how: Any) -> list[list[int]]:
    train = build_datasets(options, 60, 0, 0, **how).train
    assert train is not None
    return [train[place].tolist() for place in range(len(train))]


def test_there_is_one_barrier_for_all_files_of_all_splits(many: list[str], make_pair: MakePair) -> None:
    passed: list[int] = []
    evaluated = [f"A: 1 0:1 {make_pair('a', lengths=[90])}", f"B: 1 0:1 {make_pair('b', lengths=[90])}"]
    options = options_for(
        data_path=many, valid_weighted_split_paths=evaluated, test_weighted_split_paths=evaluated, split="1,0,0"
    )
    for is_builder in (True, False):
        build_datasets(options, 60, 5, 5, is_builder, lambda: passed.append(1))
    assert passed == [1, 1]


def test_a_blends_orders_are_kept_as_one_set_and_found_again_without_opening_a_file(
    many: list[str], tmp_path: Path, builds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_for(data_path=many)
    before = samples_of(options)
    assert len(builds) == 12
    assert len(list((tmp_path / "cache").glob("*.json"))) == 1
    assert samples_of(options, is_builder=False) == before and len(builds) == 12
    with monkeypatch.context() as patched:
        patched.setattr("trainer.data.indexed.read_header", None)
        assert build_datasets(options, 60, 0, 0).train is not None


@pytest.mark.parametrize(
    ("damage", "facts"),
    [
        ("truncated", r"set7\.bin.*\b158\b.*set7\.idx.*\b160\b"),
        ("another's", r"set7\.bin.*\b40\b.*set7\.idx.*\b160\b"),
        ("no bin", r"set7\.bin.*set7\.idx"),
        ("nothing", "/set7"),
        ("a lying pointer", r"set7\.idx.*sequence 1"),
    ],
)
@pytest.mark.parametrize("is_builder", [True, False])
def test_a_pair_among_many_that_is_no_longer_what_it_was_is_refused_by_name(
    many: list[str], tmp_path: Path, damage: str, facts: str, is_builder: bool
) -> None:
    options = options_for(data_path=many)
    samples_of(options)
    index, data = tmp_path / "set7.idx", tmp_path / "set7.bin"
    match damage:
        case "truncated":
            data.write_bytes(data.read_bytes()[:-2])
        case "another's":
            data.write_bytes(bytes(40))
        case "no bin":
            data.unlink()
        case "nothing":
            data.unlink()
            index.unlink()
        case "a lying pointer":
            raw = index.read_bytes()
            index.write_bytes(raw[:34] + struct.pack("<2i", 31, 50) + raw[42:])
            os.utime(index, ns=(1, 1))
    with pytest.raises(DataError, match=facts):
        build_datasets(options, 60, 0, 0, is_builder)


def test_a_pair_that_changes_before_it_is_read_is_refused_by_name(many: list[str], tmp_path: Path) -> None:
    options = options_for(data_path=many)
    samples_of(options)
    train = build_datasets(options, 60, 0, 0).train
    assert train is not None
    os.utime(tmp_path / "set7.bin", ns=(1, 1))
    with pytest.raises(DataError, match=r"/set7\.bin"):
        [train[place] for place in range(len(train))]


def test_a_blend_of_more_files_than_16_bits_count_is_refused(many: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.indices.MOST_DATASETS", 11)
    with pytest.raises(DataError, match=r"train.*\b12\b.*\b11\b"):
        build_datasets(options_for(data_path=many), 60, 0, 0)


def test_what_32_bits_do_not_count_gets_64_and_no_file_of_a_blend_less_than_another_needs(
    many: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small stand-ins for numbers beyond 2^31: bounds between what the sets have."""
    before = samples_of(options_for(data_path=many))
    monkeypatch.setattr("trainer.data.indices._MOST_INT32", 9)
    monkeypatch.setattr("trainer.data.indices._MOST_UINT32", 9)
    train: Any = build_datasets(options_for(data_path=many, data_cache_path=f"{many[1]}-cache"), 60, 0, 0).train
    kinds = {(one.document_index.itemsize, one.sample_index.itemsize) for one in train.sources}
    assert kinds == {(4, 8)} and {one.shuffle_index.itemsize for one in train.sources} == {8}
    assert [train[place].tolist() for place in range(len(train))] == before
