"""How much training is left at the speed that the log shows. Pure."""

from __future__ import annotations

from opsctl.run.logs.records import Measured


def training_left_s(
    measured: Measured,
    total_samples: int | None,
    total_iterations: int | None,
    saved_samples: int | None = None,
    saved_iteration: int | None = None,
) -> float | None:
    """Seconds of training left; None where the length, how far it is, or the speed is not known.

    By samples where the training is counted in them, else by iterations. What the last iteration in the log does not
    tell comes from the last checkpoint: `saved_samples`, `saved_iteration`.
    """
    last = measured.last_iteration
    samples = last.consumed_samples if last is not None and last.consumed_samples is not None else saved_samples
    iteration = last.iteration if last is not None else saved_iteration
    in_all = last.total_iterations if last is not None else total_iterations
    if total_samples and samples is not None and measured.samples_per_second:
        return max(0, total_samples - samples) / measured.samples_per_second
    if in_all and iteration is not None and measured.seconds_per_iteration:
        return max(0, in_all - iteration) * measured.seconds_per_iteration
    return None
