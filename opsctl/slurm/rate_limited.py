"""A Slurm that is asked at most twice in any minute, however often somebody who looks for hours wants to know."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from opsctl.core.errors import SlurmError, SlurmUnreachable
from opsctl.slurm.client import SlurmLooks
from opsctl.slurm.nodes import Node
from opsctl.slurm.types import Job

T = TypeVar("T")

MINUTE_S = 60.0
MOST_A_MINUTE = 2
#: Seconds for which an answer counts. A refusal, or silence, counts half a minute.
QUEUE_COUNTS_S = 60.0
NODES_COUNT_S = 180.0
CONFIGURATION_COUNTS_S = 86400.0
ERROR_COUNTS_S = 30.0


@dataclass
class _Answer:
    value: Any  # or the error
    asked_at_s: float
    is_old: bool = False  # somebody has changed something since

    def counts(self, now_s: float, for_s: float) -> bool:
        """Whether nothing newer is wanted."""
        most_s = ERROR_COUNTS_S if isinstance(self.value, SlurmError) else for_s
        return not self.is_old and now_s - self.asked_at_s < most_s


class RarelyAsked:
    """See SlurmLooks. What it has been told last is its answer while it may not ask; for one thread or several.

    make: a client for each question. Where no answer was had yet, and it may not ask, it raises SlurmUnreachable.
    """

    def __init__(self, make: Callable[[], SlurmLooks], clock: Callable[[], float] = time.monotonic) -> None:
        self._make, self._clock = make, clock
        self._asked_at_s: deque[float] = deque(maxlen=MOST_A_MINUTE)
        self._answers: dict[str, _Answer] = {}
        self._lock = threading.RLock()

    @property
    def queue_age_s(self) -> float:
        """How old the last answer about jobs is."""
        answer = self._answers.get("jobs")
        return 0.0 if answer is None else max(0.0, self._clock() - answer.asked_at_s)

    def expect_change(self) -> None:
        """What is known of the queue no longer counts as soon as it may be asked for again."""
        with self._lock:
            for name in ("jobs", "nodes"):
                if name in self._answers:
                    self._answers[name].is_old = True

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        """Those that are wanted of everybody's."""

        def ask(client: SlurmLooks) -> tuple[list[Job], float]:
            found = client.jobs()
            return found, float(getattr(client, "queue_age_s", 0.0))

        names, ids = None if users is None else set(users), None if job_ids is None else set(job_ids)
        return [
            job
            for job in self._answer("jobs", QUEUE_COUNTS_S, ask)
            if (names is None or job.user in names) and (ids is None or ids & {job.job_id, job.array_job_id})
        ]

    def nodes(self, folded: str | None = None) -> list[Node]:
        """Those of all nodes that are in the list."""
        found: list[Node] = self._answer("nodes", NODES_COUNT_S, lambda client: (client.nodes(), 0.0))
        if folded is None:
            return found
        names = set(self.nodes_of(folded))
        return [node for node in found if node.name in names]

    def hides_others_jobs(self) -> bool:
        """As Slurm said within the last day."""

        def ask(client: SlurmLooks) -> tuple[bool, float]:
            return client.hides_others_jobs(), 0.0

        return self._answer("hides", CONFIGURATION_COUNTS_S, ask)

    def configuration(self) -> dict[str, str]:
        """As Slurm said within the last day."""

        def ask(client: SlurmLooks) -> tuple[dict[str, str], float]:
            return client.configuration(), 0.0

        return self._answer("configuration", CONFIGURATION_COUNTS_S, ask)

    def nodes_of(self, folded: str) -> list[str]:
        """Asks nobody."""
        return self._make().nodes_of(folded)

    def _answer(self, name: str, for_s: float, ask: Callable[[SlurmLooks], tuple[T, float]]) -> T:
        """The answer that counts, a new one, or the last one; `ask` gives one with its age in seconds."""
        with self._lock:
            now_s, known = self._clock(), self._answers.get(name)
            if known is None or not known.counts(now_s, for_s):
                if self._may_ask(now_s):
                    known = self._answers[name] = self._asked(now_s, ask)
                elif known is None:
                    raise SlurmUnreachable(
                        f"Slurm is asked no more than {MOST_A_MINUTE} times a minute from here; this is asked next"
                    )
            if isinstance(known.value, SlurmError):
                raise type(known.value)(str(known.value))
            value: T = known.value
            return value

    def _may_ask(self, now_s: float) -> bool:
        return len(self._asked_at_s) < MOST_A_MINUTE or now_s - self._asked_at_s[0] > MINUTE_S

    def _asked(self, now_s: float, ask: Callable[[SlurmLooks], tuple[Any, float]]) -> _Answer:
        self._asked_at_s.append(now_s)
        try:
            value, age_s = ask(self._make())
        except SlurmError as error:
            return _Answer(error, now_s)
        return _Answer(value, now_s - age_s)
