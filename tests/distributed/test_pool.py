"""The pool of ranks that the other distributed tests stand on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.distributed.pool import Pool, RanksFailed

pytestmark = pytest.mark.distributed


def rank_and_sum(addend: int) -> tuple[int, int, int]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + addend])
    dist.all_reduce(total)
    return dist.get_rank(), int(total), os.getpid()


def raise_on(rank: int) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if dist.get_rank() == rank:
        raise ValueError(f"of rank {rank}")
    dist.barrier()


def die_on(rank: int) -> None:
    if int(os.environ["RANK"]) == rank:
        os._exit(3)


def sleep(folder: str) -> None:
    Path(folder, os.environ["RANK"]).write_text(str(os.getpid()))
    time.sleep(60)


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_ranks_talk_to_each_other_and_answer_in_order(pool: Pool) -> None:
    first = pool.run(3, rank_and_sum, 10)
    assert [answer[:2] for answer in first] == [(0, 33), (1, 33), (2, 33)]
    again = pool.run(2, rank_and_sum, 0)
    assert [answer[:2] for answer in again] == [(0, 1), (1, 1)]
    assert not {pid for *_, pid in first} & {pid for *_, pid in again}
    assert not any(is_alive(pid) for *_, pid in first + again)


def test_a_rank_that_raises_is_named_and_ends_the_others(pool: Pool) -> None:
    with pytest.raises(RanksFailed, match=r"rank 1: [^$]*ValueError: of rank 1"):
        pool.run(3, raise_on, 1)
    assert len(pool.run(2, rank_and_sum, 0)) == 2


def test_a_rank_that_dies_is_named(pool: Pool) -> None:
    with pytest.raises(RanksFailed, match="rank 1: died"):
        pool.run(2, die_on, 1)


def test_late_ranks_are_ended_and_none_is_left(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(RanksFailed, match="within 5 s"):
        pool.run(2, sleep, str(tmp_path), timeout_s=5)
    processes = [int(file.read_text()) for file in tmp_path.iterdir()]
    assert len(processes) == 2
    assert not any(is_alive(one) for one in processes)
