"""What is gathered between two log lines."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass
class Interval:
    """Sums over the iterations since the last log line. The clock runs in steps only, not in evaluations or saves."""

    iterations: int = 0
    samples: int = 0
    seconds: float = 0.0
    skipped: int = 0
    nan: int = 0
    left_out: int = 0  # skipped on request: in no other number
    _finite_losses: list[float] = field(default_factory=list)

    def add(self, loss: float, samples: int, seconds: float, skipped: bool) -> None:
        """Count one iteration; a loss that is no finite number is counted as nan and kept out of the mean."""
        self.iterations += 1
        self.samples += samples
        self.seconds += seconds
        self.skipped += skipped
        if math.isfinite(loss):
            self._finite_losses.append(loss)
        else:
            self.nan += 1

    @property
    def loss(self) -> float | None:
        """Mean of the finite losses, None without any."""
        return math.fsum(self._finite_losses) / len(self._finite_losses) if self._finite_losses else None

    @property
    def seconds_per_iteration(self) -> float:
        """Mean over the interval. Raises ZeroDivisionError before its first iteration."""
        return self.seconds / self.iterations

    @property
    def samples_per_second(self) -> float:
        """Of all replicas together. Raises ZeroDivisionError before the first iteration."""
        return self.samples / self.seconds
