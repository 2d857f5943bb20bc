"""Durations as Slurm writes them: `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S`."""

from __future__ import annotations

import re

#: What may be written, in words.
DURATION_RULE = "a Slurm duration: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S"
_DURATION = re.compile(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})")


def parse_duration_s(text: str) -> int:
    """Return the seconds of a Slurm duration, as in sbatch(1) `--time`. Raises ValueError for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a duration (minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S)")
    parts = [int(part) for part in match["rest"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return ((int(match["days"]) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(parts) == 1:
        return parts[0] * 60
    if len(parts) == 2:
        return parts[0] * 60 + parts[1]
    return (parts[0] * 60 + parts[1]) * 60 + parts[2]


def format_duration(seconds: float) -> str:
    """`H:MM:SS`, or `D-HH:MM:SS` from one day on, as squeue prints elapsed times. Negative counts as zero."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else f"{rest // 3600}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
