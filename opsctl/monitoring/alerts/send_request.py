"""What a sender is told, and what it says: both lines of JSON between two processes."""

from __future__ import annotations

import msgspec

from opsctl.run.state.alert_log import Message


class Task(msgspec.Struct, kw_only=True):
    """What a sender is told on stdin: the only way by which a secret reaches it."""

    output: str
    run: str  # its name
    run_id: str
    channel: str
    url: str = ""
    hook: list[str] = []
    is_open: bool = False  # the URL must have no secret
    lock: str = ""  # the file whose lock it holds
    messages: list[Message] | None = None  # these, whatever the log says; None: what the channel has yet to take
    is_heartbeat: bool = False  # only ask for the URL
    budget_s: float = 60.0  # no try begins after that
    try_s: float = 30.0  # the longest that one try may take


class Report(msgspec.Struct, kw_only=True):
    """One line of its stdout."""

    result: str  # one of RESULTS, "busy", "disk"
    id: str = ""
    why: str = ""
