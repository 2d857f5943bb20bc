"""The planted kinds: when each can be seen at the earliest, which checks claim it, and its consequences.

These rules are older than the thresholds of the checks, and no check knows them. A check is named as in its findings'
keys, `CHECK` or `CHECK:SUBJECT`; where only some subjects count, the pattern says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from benchmarks.desk.shapes import HOUR_S


@dataclass(frozen=True)
class Kind:
    """One kind of trouble."""

    name: str
    visible: str  # from when on a user who sees all that the checks see could tell
    claims: tuple[str, ...] = ()  # patterns of keys: any of them reports it
    brings: tuple[str, ...] = ()  # and these may come with it
    after_s: float = 2 * HOUR_S  # for so long after its end what it brought may still begin
    leaves_a_trace: bool = False  # in the log: it can still be seen when it is over
    is_planted: bool = True  # False: ordinary operation, which no one needs to be told of

    @cached_property
    def _claimed(self) -> re.Pattern[str]:
        return re.compile("|".join(self.claims) or r"(?!)")

    @cached_property
    def _explained(self) -> re.Pattern[str]:
        return re.compile("|".join((*self.claims, *self.brings)) or r"(?!)")

    def reports(self, key: str) -> bool:
        """Return whether a finding with this key is this trouble."""
        return self._claimed.fullmatch(key) is not None

    def explains(self, key: str) -> bool:
        """Return whether a finding with this key is this trouble or comes of it."""
        return self._explained.fullmatch(key) is not None


def _key(check: str) -> str:
    """Any subject of this check."""
    return rf"{check}(:.*)?"


_LOSS = (_key("loss_spike"), _key("loss_stuck"), _key("loss_nan"), _key("gradients"), _key("skipped"))
_IDLE = (_key("training"), _key("must_run"), _key("waiting"), _key("queue"))
_STOPPED = (_key("silence"), _key("checkpoint_age"))

KINDS: tuple[Kind, ...] = (
    Kind("none queued", "at once", (_key("training"),), (*_IDLE, _key("no_progress"))),
    Kind("all held", "at once", (_key("training"),), _IDLE),
    Kind("dependency lost", "at once", (_key("training"),), _IDLE),
    Kind("bad constraints", "at once", (_key("training"),), _IDLE),
    Kind("long wait", "after 1.5 times the longest wait so far, and no less than 24 h", (_key("waiting"),), _IDLE),
    Kind("must run, waits", "after an hour of waiting", (_key("must_run"),), _IDLE),
    Kind("few arrays", "after two hours with fewer than are to be kept", (_key("queue"),), (*_IDLE, _key("cron_jobs"))),
    Kind(
        "hang in evaluation",
        "silent for two evaluations' time, no less than 15 min",
        (_key("silence"),),
        _STOPPED,
    ),
    Kind("hang in training", "silent for 12 log lines' time, no less than 15 min", (_key("silence"),), _STOPPED),
    Kind("hang at start", "silent for twice the longest start, no less than 30 min", (_key("silence"),), _STOPPED),
    Kind("slow node", "50 log lines later", (_key("speed"),), (_key("throughput"), *_STOPPED), 8 * HOUR_S),
    Kind("collapse", "10 log lines later", (_key("speed"), _key("throughput")), _STOPPED, 8 * HOUR_S),
    Kind("below plan", "50 log lines later", (_key("throughput"),), (_key("speed"), *_STOPPED), 8 * HOUR_S),
    Kind("loss NaN", "2 log lines later", (_key("loss_nan"),), _LOSS, 6 * HOUR_S),
    Kind("spike, 30 iterations", "3 iterations, or a log line, later", (_key("loss_spike"),), _LOSS, 6 * HOUR_S, True),
    Kind("spike, 500 iterations", "3 iterations, or a log line, later", (_key("loss_spike"),), _LOSS, 6 * HOUR_S, True),
    Kind("divergence", "half way up", (_key("loss_spike"), _key("loss_stuck")), _LOSS, 24 * HOUR_S),
    Kind("stuck", "500 iterations after the loss stopped falling", (_key("loss_stuck"),), _LOSS, 24 * HOUR_S),
    Kind("gradients climb", "10 log lines at twice the usual", (_key("gradients"),), _LOSS, 8 * HOUR_S),
    Kind("skipped iterations", "100 iterations later", (_key("skipped"),), _LOSS, 8 * HOUR_S),
    Kind("saves fail", "twice the usual time since the last one", (_key("checkpoint_age"),), ()),
    Kind("checkpoint cut short", "at once", (_key("checkpoint_files"),), ()),
    Kind("latest is lost", "at once", (_key("checkpoints"),), (_key("checkpoint_age"),)),
    Kind(
        "crash loop",
        "the second attempt in a row",
        (_key("no_progress"),),
        (*_IDLE, *_STOPPED, _key("nodes")),
        6 * HOUR_S,
    ),
    Kind("disk fills", "a day of growth that fills it within a week", (_key("filling"), _key("filesystem")), ()),
    Kind("inodes fill", "a day of growth that fills it within a week", (_key("filling"), _key("filesystem")), ()),
    Kind("purge", "at once", (_key("purge"),), ()),
    Kind("cron dead", "two periods after its last tick", (_key("cron"),), (_key("queue"), _key("training"))),
    Kind("cron job fails", "the second failure in a row", (_key("cron_jobs"),), (_key("queue"),)),
    Kind("channel fails", "after an hour", (_key("channels"),), ()),
    Kind("node drains", "at once", (_key("nodes"),), ()),
    Kind("few nodes", "at once", (_key("spare_nodes"),), (*_IDLE, _key("nodes"))),
    Kind("kill switch left", "at once", (_key("kill_switch"),), (*_IDLE, *_STOPPED)),
    Kind("not published", "at once", (_key("unpublished"),), ()),
    Kind("clock off", "at once", (_key("clocks"),), ()),
    # Ordinary operation: true findings about it are neither wanted nor wrong, and are counted apart.
    Kind("maintenance", "", (), (*_IDLE, _key("spare_nodes"), _key("nodes")), 12 * HOUR_S, is_planted=False),
    Kind("GPU death", "", (), (_key("must_run"), _key("nodes"), _key("silence")), 6 * HOUR_S, is_planted=False),
    Kind("no answer from Slurm", "", (), (), is_planted=False),
    Kind("held on purpose", "", (), (_key("training"),), is_planted=False),
    Kind("stopped on purpose", "", (), (_key("kill_switch"), *_IDLE), 3 * HOUR_S, is_planted=False),
    Kind("edited, then published", "", (), (_key("unpublished"),), is_planted=False),
    Kind("channel hiccup", "", (), (), is_planted=False),
    Kind("cron job hiccup", "", (), (), is_planted=False),
    Kind("clock misread", "", (), (), is_planted=False),
)
BY_NAME = {kind.name: kind for kind in KINDS}
PLANTED = tuple(kind for kind in KINDS if kind.is_planted)


@dataclass
class Trouble:
    """One time that something happened. Times in seconds since the beginning."""

    kind: Kind
    starts_at: float
    ends_at: float | None = None  # None: it goes on
    seen_from: float | None = None  # None: not yet
    words: str = ""

    def can_be_seen(self, at: float) -> bool:
        """Return whether a look at that time could show it."""
        if self.seen_from is None or at < self.seen_from:
            return False
        return self.kind.leaves_a_trace or self.ends_at is None or at < self.ends_at

    def covers(self, at: float) -> bool:
        """Return whether what comes of it may begin at that time."""
        return self.starts_at <= at and (self.ends_at is None or at <= self.ends_at + self.kind.after_s)
