"""A Slurm that is asked each question once, however many runs are looked at together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeVar

from opsctl.core.errors import SlurmError
from opsctl.slurm.client import SlurmLooks
from opsctl.slurm.nodes import Node
from opsctl.slurm.types import Job

T = TypeVar("T")


class AskedOnce:
    """See SlurmLooks. For one look: what it answers, a refusal too, stays so.

    make: a client for each question, so that each has its own time, however long the files between two take.
    """

    def __init__(self, make: Callable[[], SlurmLooks]) -> None:
        self._make = make
        self.queue_age_s = 0.0  # how old the answer about jobs was when it came

    @cached_property
    def _queue(self) -> list[Job] | SlurmError:
        client = self._make()
        found = _tried(lambda: client.jobs())
        self.queue_age_s = float(getattr(client, "queue_age_s", 0.0))
        return found

    @cached_property
    def _nodes(self) -> list[Node] | SlurmError:
        return _tried(lambda: self._make().nodes())

    @cached_property
    def _hides(self) -> bool | SlurmError:
        return _tried(lambda: self._make().hides_others_jobs())

    @cached_property
    def _configuration(self) -> dict[str, str] | SlurmError:
        return _tried(lambda: self._make().configuration())

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        """Everybody's; narrowed ones are asked for each time."""
        return _told(self._queue) if users is None and job_ids is None else self._make().jobs(users, job_ids)

    def nodes(self, folded: str | None = None) -> list[Node]:
        """Those of all nodes that are in the list."""
        found = _told(self._nodes)
        if folded is None:
            return found
        names = set(self.nodes_of(folded))
        return [node for node in found if node.name in names]

    def hides_others_jobs(self) -> bool:
        """As the one behind it says."""
        return _told(self._hides)

    def configuration(self) -> dict[str, str]:
        """As the one behind it says."""
        return _told(self._configuration)

    def nodes_of(self, folded: str) -> list[str]:
        """Asks nobody."""
        return self._make().nodes_of(folded)


def _tried(ask: Callable[[], T]) -> T | SlurmError:
    try:
        return ask()
    except SlurmError as error:
        return error


def _told(answer: T | SlurmError) -> T:
    if isinstance(answer, SlurmError):
        raise type(answer)(str(answer))
    return answer
