from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import OpsctlError
from opsctl.job import stacks
from opsctl.job.stacks import described, place, take_stacks, written
from trainer.formats.json_text import json_line
from trainer.formats.rank_stacks import RankStack, pieces


def stack(rank: int, *functions: str, state: str = "S") -> RankStack:
    """A rank whose main thread is in `functions`, innermost first, beside a thread that reads ahead."""
    frames = "".join(f'  File "/x/{name}.py", line 7 in {name}\n' for name in functions)
    reader = 'Thread 0x1 (most recent call first):\n  File "/x/queue.py", line 1 in get\n\n'
    text = f"{reader}Current thread 0x2 (most recent call first):\n{frames}" if functions else ""
    return RankStack(rank, "x1", 40 + rank, state, text)


def test_ranks_are_grouped_by_where_their_main_thread_is() -> None:
    waits = [stack(rank, "all_reduce", "reason", "_steps", "train") for rank in (0, 2, 3)]
    found = [*waits[:1], stack(1, "read", "__next__"), *waits[1:], stack(4, state="T")]
    said = "3 of 6 ranks in all_reduce < reason < _steps; rank 1 in read < __next__; rank 4 did not answer (stopped); "
    assert described(found, 6) == said + "1 of 6 ranks not found"


def test_of_many_places_the_fullest_are_told() -> None:
    found = [stack(rank, f"f{rank % 7}") for rank in range(20)]
    assert described(found, 20).startswith("3 of 20 ranks in f0; 3 of 20 ranks in f1; ")
    assert described(found, 20).endswith("; 8 elsewhere")


@pytest.mark.parametrize(
    ("state", "said"), [("D", "waits for the disk"), ("gone", "gone"), ("R", "process state R"), ("Z", "dead")]
)
def test_a_rank_that_did_not_answer_says_why(state: str, said: str) -> None:
    assert place(stack(1, state=state)) == f"did not answer ({said})"


def test_the_file_has_every_rank() -> None:
    text = written([stack(0, "f"), stack(1, state="T")])
    assert text.startswith("=== rank 0 on x1, pid 40, state S\nThread 0x1") and text.endswith("state T\nno answer\n\n")


@pytest.mark.parametrize("is_late", [False, True])
def test_what_some_nodes_told_counts_also_where_others_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    parts = [list(pieces(stack(rank, "f" * 200))) for rank in (3, 1)]
    mixed = [piece for both in zip(*parts, strict=True) for piece in both]
    lines = "".join(json_line(piece) + "\n" for piece in mixed) + "srun: warning: x\n{\n"
    (tmp_path / "told").write_text(lines)
    srun = tmp_path / "srun"
    hangs = "exec sleep 60" if is_late else ""
    srun.write_text(f'#!/bin/sh\necho "$1 $2 $3" >{tmp_path}/asked\ncat {tmp_path}/told\n{hangs}\n')
    srun.chmod(0o755)
    monkeypatch.setattr(stacks, "STEP_WAIT_S", 0.5 if is_late else 60.0)
    assert take_stacks(["python"], 2, {"PATH": f"{tmp_path}:/usr/bin:/bin"}) == [
        stack(1, "f" * 200),
        stack(3, "f" * 200),
    ]
    assert (tmp_path / "asked").read_text() == "--overlap --nodes=2 --ntasks=2\n"


def test_no_answer_at_all_is_an_error_in_sruns_words() -> None:
    with pytest.raises(OpsctlError, match="srun cannot be started"):
        take_stacks(["python"], 1, {"PATH": "/nowhere"})
