"""Files that explain a failed attempt: torch elastic's error file, NCCL's flight records, stacks, lost peers."""

from __future__ import annotations

import io
import json
import pickle
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from trainer.core.files import read_plain
from trainer.formats import tolerant
from trainer.formats.json_text import json_line

#: More than any traceback: whoever shares the folder can put anything there.
_LARGEST_BYTES = 1 << 20


class _Words(msgspec.Struct, frozen=True):
    message: str
    extraInfo: dict[str, str] = {}


class _ErrorFile(msgspec.Struct, frozen=True):
    message: _Words | str


def write_error_file(path: Path, message: str, at: float) -> None:
    """Leave `message` as torch does; `at` is in seconds since 1970. Raises OSError."""
    path.write_text(json_line(_ErrorFile(_Words(message, {"timestamp": str(int(at))}))), encoding="utf-8")


def read_error_file(path: Path) -> str:
    """The message, "" when there is none or it is damaged."""
    try:
        found = tolerant.decode(read_plain(path, _LARGEST_BYTES), _ErrorFile)
    except OSError:
        return ""
    if found is None:
        return ""
    return found.message.message if isinstance(found.message, _Words) else found.message


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one rank is in one process group. Collectives of a group are numbered from 1, alike on all its ranks."""

    rank: int
    group: str  # torch's name of it, the same on all its ranks
    about: str = ""  # what the program calls it; empty where it does not
    enqueued: int = 0  # the last that the program has asked for
    completed: int = 0  # the last that is done, as far as was noticed
    operation: str = ""  # of the last that was asked for: `all_reduce`


def read_dump(data: bytes, rank: int) -> list[GroupProgress]:
    """What a dump of `rank` says of its process groups, in order of their names. Raises ValueError for no dump."""
    dump = _plain(data)
    entries = dump.get("entries")
    status = dump.get("pg_status")
    if not isinstance(entries, list) and not isinstance(status, Mapping):
        raise ValueError("no flight recorder's dump: it has neither entries nor pg_status")
    found: dict[str, GroupProgress] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and not entry.get("is_p2p"):
            _add(found, entry, rank)
    for name, said in status.items() if isinstance(status, Mapping) else ():
        if isinstance(said, Mapping):
            known = found.get(str(name)) or GroupProgress(rank=rank, group=str(name))
            found[known.group] = msgspec.structs.replace(
                known,
                enqueued=max(known.enqueued, _number(said.get("last_enqueued_collective"))),
                completed=max(known.completed, _number(said.get("last_completed_collective"))),
            )
    return [found[name] for name in sorted(found)]


def _add(found: dict[str, GroupProgress], entry: Mapping[str, Any], rank: int) -> None:
    """Take one recorded operation into what is known of its group."""
    names = entry.get("process_group")
    name, about = (*map(str, names), "")[:2] if isinstance(names, list | tuple) and names else ("", "")
    known = found.get(name) or GroupProgress(rank=rank, group=name, about="" if about == "undefined" else about)
    number = _number(entry.get("collective_seq_id"))
    if number >= known.enqueued:
        operation = str(entry.get("profiling_name") or "").rpartition(":")[2]
        known = msgspec.structs.replace(known, enqueued=number, operation=operation)
    if entry.get("state") == "completed":
        known = msgspec.structs.replace(known, completed=max(known.completed, number))
    found[name] = known


def _plain(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data) if data[:1] == b"{" else _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # a pickle that was cut short raises whatever its next byte happens to mean
        raise ValueError(f"no flight recorder's dump: {error}") from None
    if not isinstance(value, Mapping):
        raise ValueError("no flight recorder's dump: it is no dictionary")
    return value


class _PlainUnpickler(pickle.Unpickler):
    """Makes numbers, texts, lists and dictionaries; no object of any class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise ValueError("it refers to something outside")


def _number(value: Any) -> int:
    try:
        return max(0, int(value))
    except (TypeError, ValueError, OverflowError):
        return 0


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


#: Characters of text in a line: written as JSON six bytes each at most, beside some hundred for the rest.
_PIECE = 120


class RankStack(msgspec.Struct, frozen=True):
    """The Python stacks of one rank's threads, or why there are none."""

    rank: int
    node: str = ""
    pid: int | None = None
    state: str = ""  # of the process, as /proc has it: R, S, D, T, ...
    text: str = ""  # as faulthandler writes it, the main thread last; empty where the process did not answer


def pieces(stack: RankStack) -> Iterator[RankStack]:
    """`stack` with its text cut into pieces, one for each line."""
    for start in range(0, max(1, len(stack.text)), _PIECE):
        yield msgspec.structs.replace(stack, text=stack.text[start : start + _PIECE])


def joined(found: Iterable[RankStack]) -> list[RankStack]:
    """The stacks whose pieces these are, by rank; a rank's pieces are in their order."""
    stacks: dict[tuple[str, int], RankStack] = {}
    for piece in found:
        before = stacks.get((piece.node, piece.rank))
        text = before.text + piece.text if before else piece.text
        stacks[piece.node, piece.rank] = msgspec.structs.replace(piece, text=text)
    return sorted(stacks.values(), key=lambda stack: stack.rank)
