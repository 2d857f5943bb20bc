"""How one rank failed, in a sentence: written by a node's launcher, read where the first failure of all is elected.

A rank that loses a peer fails too, within moments; its words say so, and it is not the cause.
"""

from __future__ import annotations

import re
import signal

#: What a rank says that lost a peer, over gloo or NCCL, or waited for one in vain: parts of lines as they are printed,
#: by what they tell of. Whoever reads a whole log goes by the same lists (`words_of` in triage's table of rules).
LOST_PEER = {
    "connection": (
        *("closed by peer", "reset by peer", "peer closed", "Broken pipe", "broken pipe", "Remote end closed"),
        *("Connection was likely closed", "connection was likely closed", "Connection reset", "Connection closed"),
        *("Connection refused", "Connection aborted", "Socket closed", "socket closed", "Socket Timeout"),
        *("socket timeout", "recvValue failed", "failed to recv", "transport/tcp", "waiting for clients"),
        *("DistNetworkError", "DistStoreError", "DistBackendError", "exit barrier", "Exit barrier"),
        *("client socket has timed out", "wait timeout after", "Connection was aborted"),
        "NCCL communicator was aborted",
    ),
    "nccl": ("NCCL error", "NCCL Error", "ncclRemoteError", "remote process exited", "remote process has exited"),
    "collective": (
        *("collective operation timeout", "Watchdog caught", "watchdog thread terminated", "Heartbeat monitor timed"),
    ),
    "gloo": ("ms for recv operation", "ms for send operation"),
}
_LOST_PEER = tuple(words.lower() for kind in LOST_PEER.values() for words in kind)
_FOLLOWED = "followed another rank's failure: "
#: A sentence that says nothing beyond the exit code or signal.
_NO_WORD = re.compile(r"exited with status \S+|killed by (signal )?\S+")


def is_lost_peer(message: str) -> bool:
    """Whether `message`, a rank's own or a launcher's sentence about it, tells of a peer that was lost before."""
    said = message.lower()
    return message.startswith(_FOLLOWED) or any(words in said for words in _LOST_PEER)


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
