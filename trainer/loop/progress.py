"""How far a training is: the counters that everything else follows from."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Progress:
    """Counted since the very first step, over all restarts."""

    iteration: int = 0
    consumed_train_samples: int = 0
    consumed_train_tokens: int = 0
    consumed_valid_samples: int = 0  # of each validation group

    def after_step(self, batch_size: int, sequence_length: int) -> None:
        """Count one training step on `batch_size` samples of `sequence_length` tokens."""
        self.iteration += 1
        self.consumed_train_samples += batch_size
        self.consumed_train_tokens += batch_size * sequence_length

    def as_json(self) -> dict[str, int]:
        return asdict(self)
