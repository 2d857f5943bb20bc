"""The trainer with a fault put into one rank: `--main tests.distributed.disturbed_training -- FAULT TRAINER ARGUMENTS`.

In pools a test calls `disturb` first. What a real fault needs is a dead file system, or NCCL; these stand for it.
"""

from __future__ import annotations

import os
import time
from typing import Any


def main(arguments: list[str]) -> int:
    from trainer import pretrain_gpt

    disturb(arguments[0])
    return pretrain_gpt.main(arguments[1:])


def disturb(fault: str) -> None:
    """Put the fault into this rank if it is this rank's."""
    _FAULTS[fault](int(os.environ["RANK"]))


def _data_error_on(rank: int) -> Any:
    def put(own: int) -> None:
        from trainer.formats.errors import DataError
        from trainer.loop import preparing

        def refuse(*_args: Any, **_more: Any) -> Any:
            raise DataError("corpus gone")

        if own == rank:
            setattr(preparing, "build_datasets", refuse)  # noqa: B010

    return put


def _reading(in_evaluation: bool) -> Any:
    """Rank 1 meets a sample that cannot be used; while it trains, another of its readers hangs as on a dead disk."""

    def put(own: int) -> None:
        from trainer.data.micro_batches import MicroBatches
        from trainer.formats.errors import SampleError

        usual = MicroBatches._read

        def read(self: Any, first: int) -> Any:
            if (self._pool is None) == in_evaluation and first >= 12:
                if first >= 20 and not in_evaluation:
                    time.sleep(600)
                raise SampleError(f"sample {first}: bad")
            return usual(self, first)

        if own == 1:
            setattr(MicroBatches, "_read", read)  # noqa: B010

    return put


def _deaf(own: int) -> None:
    """Rank 0 waits where no signal reaches it, as inside NCCL, for rank 1, which refuses."""
    import signal

    from trainer.loop import preparing

    if own == 0:

        def wait(*_args: Any, **_more: Any) -> Any:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            time.sleep(600)

        setattr(preparing, "build_datasets", wait)  # noqa: B010
    else:
        _data_error_on(1)(own)


def _save_hangs(own: int) -> None:
    """Rank 1 hangs in its last save, which may take two seconds."""
    from trainer.checkpoint import save
    from trainer.loop import assembly

    setattr(assembly, "HARD_END_AFTER_S", 2.0)  # noqa: B010
    if own == 1:
        setattr(save, "write", lambda *_args: time.sleep(600))  # noqa: B010


_FAULTS: dict[str, Any] = {
    "no data: rank 0": _data_error_on(0),
    "no data: rank 1": _data_error_on(1),
    "bad sample: thread": _reading(in_evaluation=False),
    "bad sample: evaluation": _reading(in_evaluation=True),
    "deaf": _deaf,
    "save hangs": _save_hangs,
}
