"""How one rank failed, in a sentence: written by a node's launcher, read where the first failure of all is elected.

A rank that loses a peer fails too, within moments; its words say so, and it is not the cause.
"""

from __future__ import annotations

import re
import signal

#: What a rank says that lost a peer, over gloo or NCCL, or waited for one in vain.
_LOST_PEER = re.compile(
    r"closed by peer|reset by peer|peer closed|broken pipe|connection (was )?(likely )?(reset|closed|refused|aborted)"
    r"|was likely closed|socket (closed|timeout)|recvvalue failed|failed to recv|transport/tcp"
    r"|remote process (has )?exited|NCCL error|ncclremoteerror|nccl communicator was aborted"
    r"|collective operation timeout|watchdog|timed? ?out (waiting|after)|Dist(Network|Store|Backend)Error|exit barrier",
    re.IGNORECASE,
)
_FOLLOWED = "followed another rank's failure: "
#: A sentence that says nothing beyond the exit code or signal.
_NO_WORD = re.compile(r"exited with status \S+|killed by (signal )?\S+")


def is_lost_peer(message: str) -> bool:
    """Whether `message`, a rank's own or a launcher's sentence about it, tells of a peer that was lost before."""
    return message.startswith(_FOLLOWED) or bool(_LOST_PEER.search(message))


def failure_sentence(exit_code: int | None, signal_number: int | None, message: str, followed: bool) -> str:
    """How a rank ended, in one line: by a signal, else in its own words (the first line of `message`), else its status.

    `followed`: another rank's failure pulled it down.
    """
    own = message.splitlines()[0] if message else ""
    if signal_number is not None:
        own = f"killed by {signal_name(signal_number)}"
    elif not own:
        own = f"exited with status {exit_code}"
    return f"{_FOLLOWED}{own}" if followed else own


def says_nothing(sentence: str) -> bool:
    """Whether a launcher's sentence holds no word of the rank itself."""
    return not sentence or bool(_NO_WORD.fullmatch(sentence))


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 64` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
