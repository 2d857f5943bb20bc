"""One question to Slurm for many runs: what is asked again within one look is answered from the first time."""

from __future__ import annotations

from collections.abc import Iterable

from opsctl.errors import SlurmUnreachable
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.nodes import Node
from opsctl.slurm.types import Job, JobEnd


class OneLook:
    """A SlurmClient around another one, for one look at many runs. It remembers the whole queue, what others' jobs are
    hidden, and that Slurm did not answer; the rest it passes on. What changes the queue is not to be done through it.
    """

    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self._queue: list[Job] | None = None
        self._hides: bool | None = None
        self._configuration: dict[str, str] | None = None
        self._unreachable: SlurmUnreachable | None = None

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        """The whole queue, asked for once; a narrower question is passed on."""
        if users is not None or job_ids is not None:
            return self._client.jobs(users, job_ids)
        if self._unreachable is not None:
            raise self._unreachable
        if self._queue is None:
            try:
                self._queue = self._client.jobs()
            except SlurmUnreachable as error:
                self._unreachable = error
                raise
        return self._queue

    def hides_others_jobs(self) -> bool:
        """Asked for once."""
        if self._hides is None:
            self._hides = self._client.hides_others_jobs()
        return self._hides

    def configuration(self) -> dict[str, str]:
        """Asked for once."""
        if self._configuration is None:
            self._configuration = self._client.configuration()
        return self._configuration

    def ends(self, job_ids: Iterable[int]) -> dict[int, JobEnd]:
        """Passed on."""
        return self._client.ends(job_ids)

    def submit(self, script: str) -> int:
        """Refused: what follows from a look that others share is no ground for it."""
        raise NotImplementedError("look again before submitting")

    def cancel(self, ids: Iterable[int | str], pending_only: bool = False) -> None:
        """Refused, as `submit`."""
        raise NotImplementedError("look again before cancelling")

    def nodes(self, folded: str | None = None) -> list[Node]:
        """Passed on."""
        return self._client.nodes(folded)

    def node_address(self, node: str) -> str:
        """Passed on."""
        return self._client.node_address(node)

    def nodes_of(self, folded: str) -> list[str]:
        """Passed on."""
        return self._client.nodes_of(folded)
