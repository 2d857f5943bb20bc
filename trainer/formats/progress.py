"""How far a training is: the counters that everything else follows from."""

from __future__ import annotations

from typing import Any

import msgspec


class Progress(msgspec.Struct, kw_only=True):
    """Counted since the very first step, over all restarts."""

    iteration: int
    consumed_train_samples: int
    consumed_train_tokens: int
    consumed_valid_samples: int  # of each validation group

    @classmethod
    def none(cls) -> Progress:
        """A training's very beginning."""
        return Progress(**dict.fromkeys(Progress.__struct_fields__, 0))

    def counters(self) -> dict[str, Any]:
        """The counters by name, without what a subclass adds."""
        return {name: getattr(self, name) for name in Progress.__struct_fields__}

    def after_step(self, batch_size: int, sequence_length: int) -> None:
        """Count one training step on `batch_size` samples of `sequence_length` tokens."""
        self.iteration += 1
        self.consumed_train_samples += batch_size
        self.consumed_train_tokens += batch_size * sequence_length
