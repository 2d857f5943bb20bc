"""Ask opsctl in a training loop whether to save and leave. For programs that handle no signal.

    from opsctl_hook import saved, should_stop

    for step in range(start, steps):
        train(step)
        if should_stop():
            save(step)
            saved()
            break

Set `[program] stop = "hook"`. opsctl puts this module on the PYTHONPATH of every program that it starts; a copy next to
the script works too, and without opsctl `should_stop` returns False. It needs only the standard library.

Every rank has to call `should_stop` equally often. Rank 0 looks, and its answer reaches all ranks in the same call: by
a broadcast of torch.distributed if the program uses that, else by the function `agree` of the program.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

#: Names the file that asks rank 0 to stop. Absent without opsctl.
STOP_VARIABLE = "OPSCTL_STOP_FILE"
#: After the name of that file: the checkpoint is complete.
SAVED = ".saved"
_calls = 0


def should_stop(every: int = 1, agree: Callable[[bool], bool] | None = None) -> bool:
    """Return True on all ranks in the same call once the program has to save and leave.

    every: look only in each call whose number it divides, if a broadcast in each step is too slow. agree: returns rank
    0's argument on all ranks, for several ranks without torch.distributed. Raises RuntimeError where it is missing.
    """
    global _calls
    _calls += 1
    path = os.environ.get(STOP_VARIABLE)
    if not path or _calls % every:
        return False
    asked = _is_first() and os.path.exists(path)  # noqa: PTH110 - once in each step
    if agree is not None:
        return agree(asked)
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return asked
    return _broadcast(asked)


def saved() -> None:
    """Report that the checkpoint after `should_stop` is complete: opsctl need not wait until the program ends."""
    path = os.environ.get(STOP_VARIABLE)
    if path and _is_first() and os.path.exists(path):  # noqa: PTH110 - a save before the request does not count
        # A full disk ends no program that has saved, and a link of another user is not followed.
        with contextlib.suppress(OSError):
            os.close(os.open(path + SAVED, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o664))


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _broadcast(asked: bool) -> bool:
    """Return rank 0's `asked` on every rank."""
    torch = sys.modules.get("torch")  # a program that does not use it need not have it
    if torch is None or not torch.distributed.is_initialized():
        raise RuntimeError("opsctl_hook.should_stop: torch.distributed is not initialized: pass agree=FUNCTION")
    device = "cuda" if "nccl" in torch.distributed.get_backend() else "cpu"
    answer = torch.tensor([int(asked)], device=device)
    torch.distributed.broadcast(answer, 0)
    return bool(answer.item())
