"""Dumps of torch's own recorder, which gloo's ranks keep too; and what is no dump."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.formats.attempt.error_file import GroupProgress, read_dump

#: Two ranks, of which the first asks for one more operation of the second group than the other does.
RANKS = """
import sys, threading, time
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", 2), rank=rank, world_size=2)
group = dist.new_group([0, 1], group_desc="tensor")
ones = torch.ones(4)
dist.all_reduce(ones)
dist.all_reduce(ones, group=group)
dist.barrier()
if rank == 0:
    threading.Thread(target=dist.broadcast, args=(ones, 0), kwargs={"group": group}, daemon=True).start()
    time.sleep(0.5)
for name, dump in (("json", c10d._dump_fr_trace_json), ("pickle", c10d._dump_fr_trace)):
    with open(f"{folder}/{name}-{rank}", "wb") as file:
        file.write(dump())
sys.stdout.write("done\\n"), sys.stdout.flush()
sys.stdin.read()
import os; os._exit(0)
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights")
    (folder / "ranks.py").write_text(RANKS)
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(folder / "ranks.py"), str(rank), str(folder)],
            *(-1, None, subprocess.PIPE, subprocess.PIPE),
            env=environment,
        )
        for rank in (0, 1)
    ]
    for rank in ranks:
        assert rank.stdout is not None and rank.stdin is not None and rank.stdout.readline() == b"done\n"
    for rank in ranks:
        rank.communicate(timeout=30)
    if not (folder / "json-0").stat().st_size:
        pytest.skip("this torch records nothing of gloo")
    return folder


@pytest.mark.nightly
def test_torchs_own_dumps_say_how_far_each_rank_is_in_each_group(dumps: Path) -> None:
    first, second = (read_dump((dumps / f"json-{rank}").read_bytes(), rank) for rank in (0, 1))
    (ahead,), (late,) = ([one for one in found if one.about == "tensor"] for found in (first, second))
    assert (ahead.rank, ahead.enqueued, ahead.completed, ahead.operation) == (0, 2, 1, "broadcast")
    assert (late.rank, late.enqueued, late.completed, late.operation) == (1, 1, 1, "all_reduce")
    assert ahead.group == late.group


@pytest.mark.nightly
def test_pickled_dumps_of_torch_are_read_without_making_any_object(dumps: Path) -> None:
    assert isinstance(read_dump((dumps / "pickle-0").read_bytes(), 0), list)
    as_nccl_writes = pickle.dumps(json.loads((dumps / "json-0").read_bytes()), protocol=2)
    assert read_dump(as_nccl_writes, 0) == read_dump((dumps / "json-0").read_bytes(), 0)


def test_a_pickle_that_names_anything_is_refused_and_does_nothing(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path}/done",)

    with pytest.raises(ValueError, match=r"posix\.system"):
        read_dump(pickle.dumps({"entries": [Harm()]}), 0)
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"\x80\x02}q\x00", pickle.dumps([1]), os.urandom(300)])
def test_what_is_no_dump_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="dump"):
        read_dump(data, 0)


@pytest.mark.parametrize("written", [pickle.dumps, lambda dump: json.dumps(dump).encode()], ids=["nccl", "gloo"])
def test_fields_that_do_not_fit_are_passed_over(written: Callable[[object], bytes]) -> None:
    odd = {"process_group": 3, "collective_seq_id": "x", "profiling_name": None}
    good = {"process_group": ["1", "undefined"], "collective_seq_id": 4, "profiling_name": "nccl:_all_gather_base"}
    dump = {"entries": [odd, 7, {**good, "state": "completed"}, {**good, "is_p2p": True, "collective_seq_id": 9}]}
    found = read_dump(written(dump), 2)
    assert found[-1] == GroupProgress(rank=2, group="1", enqueued=4, completed=4, operation="_all_gather_base")
