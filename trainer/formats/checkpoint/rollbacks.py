"""Who let which checkpoint be the latest: without such a word the latest never goes back."""

from __future__ import annotations

import msgspec

from trainer.formats.json_text import Moment

#: Beside the checkpoints: a line for each time, there before the latest changes.
ROLLBACKS = "rollbacks.jsonl"


class Rollback(msgspec.Struct, frozen=True):
    """A line."""

    to: int  # iteration
    before: int | None = msgspec.field(default=None, name="from")  # iteration; None where nobody could tell
    by: str = ""  # user@host
    at: Moment | None = None
    why: str = ""
    set_aside: int | None = None  # number of the rollback whose folder has what came after; None: that stayed
