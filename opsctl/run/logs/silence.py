"""How long a training that runs may log nothing before it stands still, and before it is taken to hang. Pure."""

from __future__ import annotations

#: A running training that has logged nothing for so many iterations, and so long in seconds, is worth a look.
SILENT_ITERATIONS = 10
SILENT_LEAST_S = 600.0
#: It stands still after fewer, where every known pause is allowed for: that is reported, and ends nothing.
STILL_ITERATIONS = 20
STILL_LEAST_S = 60.0
#: A start, with a checkpoint of terabytes to read and kernels to build, takes so much longer, seconds.
START_MOST_S = 1800.0


def longest_silence_s(
    seconds_per_iteration: float, told_s: float | None, pauses_s: float, is_starting: bool, log_interval: int = 1
) -> float:
    """Seconds. told_s: what the run file says; None where it says nothing. pauses_s: an evaluation and a save.

    is_starting: no iteration of this start was logged yet, for which what the run file says is too short.
    log_interval: iterations to a line in the log; three lines may be missing.
    """
    if told_s is not None and not is_starting:
        return told_s
    iterations = max(SILENT_ITERATIONS, 3 * log_interval)
    limit_s = max(SILENT_LEAST_S, iterations * seconds_per_iteration) + pauses_s
    return max(limit_s, told_s or 0.0) + (START_MOST_S if is_starting else 0.0)


def standstill_s(
    seconds_per_iteration: float,
    told_s: float | None,
    pauses_s: float,
    is_starting: bool,
    log_interval: int,
    may_pause: bool,
) -> float:
    """Return after how many seconds without a line a training stands still; never later than `longest_silence_s`.

    may_pause: a start, or a save or evaluation whose length is not known, may be under way.
    """
    longest_s = longest_silence_s(seconds_per_iteration, told_s, pauses_s, is_starting, log_interval)
    if is_starting or may_pause or told_s is not None:
        return longest_s
    iterations = max(STILL_ITERATIONS, 3 * log_interval)
    return min(longest_s, max(STILL_LEAST_S, iterations * seconds_per_iteration) + pauses_s)
