"""The process that sends on one channel: `python -P -m opsctl.monitoring.alerts.send`, told what to do on stdin.

It has the channel's lock while it works, so that two never send the same; it puts down that a try begins, and at once
what became of it, so that whoever ends it, or its parent, at any moment leaves a true record. A server that hangs, or a
name that does not resolve, holds up nothing but this process, which ends itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from opsctl.core.account import account_and_host
from opsctl.core.files.state_files import PartlyWritten
from opsctl.core.files.trusted import open_file
from opsctl.core.output import show
from opsctl.core.timestamps import now
from opsctl.monitoring.alerts.send_once import Outcome, TimedOut, ask_heartbeat, load_senders, try_once
from opsctl.monitoring.alerts.send_request import Report, Task
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.secrets import Redactor
from opsctl.run.state.alert_log import Event, Message, append_event, events, queue_of, room_for_lines
from trainer.formats.file_lock import lock_within

#: Disk for the word of what became of a try.
_ROOM_BYTES = 4096
#: How long a disk that became full is asked again for that word.
_RECORD_WAIT_S = 5.0
#: After the time of one try is up: what does not listen to that is ended.
GRACE_S = 5.0


def main() -> None:
    """Do the task on stdin and say on stdout what became of it, a line for each try."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    sender = Sender(task)
    try:
        sender.work()
    except BrokenPipeError:
        os._exit(0)  # whoever started us is gone; all is on record


class Sender:
    """One process's work on one channel."""

    def __init__(self, task: Task) -> None:
        self.task, self.paths = task, RunPaths(Path(task.output))
        self.redact = Redactor([task.url]) if task.url and not task.is_open else Redactor([])
        self._until = time.monotonic() + task.budget_s

    def work(self) -> None:
        """Send what there is to send."""
        if self.task.is_heartbeat:
            with self._limited():
                self._say(self._redacted(ask_heartbeat(self.task.url, self.task.try_s)))
            return
        if self.task.messages is not None:
            for message in self.task.messages:
                self._send(message, frozenset())
            return
        lock = open_file(self.paths.output, Path(self.task.lock), os.O_RDWR | os.O_CREAT)
        try:
            if lock_within(lock, 0):
                self._drain()
            else:
                self._report(Report(result="busy"))
        finally:
            os.close(lock)

    def _drain(self) -> None:
        """Send what is owed, in order, until it is done, something fails, or time is up."""
        queue = queue_of(events(self.paths), self.task.channel)
        for lost in queue.unfinished:
            self._record(lost, Outcome("unknown", "its sender was ended before there was an answer"))
        if queue.unfinished:
            self._report(Report(result="unknown", id=queue.unfinished[0], why="a sender was ended; it is sent again"))
            queue = queue_of(events(self.paths), self.task.channel)
        refused: tuple[Message, Outcome] | None = None
        for message in queue.owed:
            if time.monotonic() >= self._until:
                return
            parts = frozenset(part for id_, part in queue.parts if id_ == message.id)
            outcome = self._send(message, parts)
            if outcome.result == "refused" and refused is None:
                # Whether it is this message or the channel, the next one tells.
                refused = message, outcome
                continue
            if outcome.result != "sent":
                return
            if refused is not None:
                self._drop(*refused)
                refused = None

    def _send(self, message: Message, parts: frozenset[str]) -> Outcome:
        """One try, on record from its beginning."""
        if not self.task.hook:
            load_senders()  # that this takes long is not the server's doing
        try:
            self._append(self._event("sending", message.id))
            with room_for_lines(self.paths, _ROOM_BYTES), self._limited():
                outcome = try_once(self.task, message, parts, lambda part: self._part(message.id, part))
        except OSError as error:
            # Without a record it would be sent again and again.
            outcome = Outcome("disk", f"not tried: cannot write {self.paths.alert_log}: {error.strerror}")
            self._say(outcome, message.id)
            return outcome
        outcome = self._redacted(outcome)
        self._record(message.id, outcome)
        self._say(outcome, message.id)
        return outcome

    def _redacted(self, outcome: Outcome) -> Outcome:
        return Outcome(outcome.result, self.redact(outcome.why), outcome.retry_after_s)

    def _drop(self, message: Message, outcome: Outcome) -> None:
        event = self._event("dropped", message.id)
        self._append(msgspec.structs.replace(event, why=f"refused, while the next was taken: {outcome.why}"))

    def _part(self, message_id: str, part: str) -> None:
        self._append(msgspec.structs.replace(self._event("part", message_id), part=part))

    def _record(self, message_id: str, outcome: Outcome) -> None:
        event = msgspec.structs.replace(
            self._event(outcome.result, message_id), why=outcome.why, retry_after_s=outcome.retry_after_s
        )
        deadline = time.monotonic() + _RECORD_WAIT_S
        while True:
            try:
                self._append(event)
                return
            except PartlyWritten:
                pass
            except OSError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.1)

    def _event(self, name: str, message_id: str) -> Event:
        return Event(event=name, at=now(), id=message_id, channel=self.task.channel, by=account_and_host())

    def _append(self, event: Event) -> None:
        append_event(self.paths, event)

    def _say(self, outcome: Outcome, message_id: str = "") -> None:
        self._report(Report(result=outcome.result, id=message_id, why=outcome.why))

    def _report(self, report: Report) -> None:
        show(msgspec.json.encode(report).decode())

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        """End what takes too long: by an exception, and by the end of the process where that is not listened to."""

        def up(*_: object) -> None:
            raise TimedOut

        signal.signal(signal.SIGALRM, up)
        signal.setitimer(signal.ITIMER_REAL, self.task.try_s)
        faulthandler.dump_traceback_later(self.task.try_s + GRACE_S, exit=True)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
