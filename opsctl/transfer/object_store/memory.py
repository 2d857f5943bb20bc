"""A limit on what many workers hold in memory together."""

from __future__ import annotations

import threading

from opsctl.transfer.object_store.flow import Flow

_LOOK_S = 0.5


class Memory:
    """So many bytes and no more; a single demand that is larger waits until nobody else has any."""

    def __init__(self, most_bytes: int) -> None:
        self._most = self._left = most_bytes
        self._changed = threading.Condition()

    def take(self, count: int, flow: Flow) -> None:
        """Wait until `count` bytes may be held. Raises Stopped."""
        count = min(count, self._most)
        with self._changed:
            while self._left < count:
                flow.pause(0)
                self._changed.wait(_LOOK_S)
            self._left -= count

    def give_back(self, count: int) -> None:
        """They are free again."""
        with self._changed:
            self._left += min(count, self._most)
            self._changed.notify_all()
