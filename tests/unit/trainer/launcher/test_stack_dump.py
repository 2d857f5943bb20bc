from __future__ import annotations

from typing import Any

import pytest

from trainer.launcher.stack_dump import as_text, spied


def thread(os_id: int, *names: str) -> dict[str, Any]:
    frames = [{"filename": f"/x/{name}.py", "line": 3, "name": name} for name in names]
    return {"os_thread_id": os_id, "thread_id": 255, "frames": frames}


def test_threads_are_told_as_faulthandler_does_the_main_one_last() -> None:
    assert as_text([thread(7, "f", "main"), thread(8, "get")], 7) == (
        'Thread 0xff (most recent call first):\n  File "/x/get.py", line 3 in get\n\n'
        "Current thread 0xff (most recent call first):\n"
        '  File "/x/f.py", line 3 in f\n  File "/x/main.py", line 3 in main\n'
    )
    assert as_text([thread(8, "get")], 7) == "", "without its main thread its place is unknown"


def test_who_cannot_be_read_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert spied([], 1.0) == {} and spied([2**22 + 1], 1.0) == {}
    monkeypatch.setattr("trainer.launcher.stack_dump.find_spy", lambda _: None)
    assert spied([1], 1.0) == {}
