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

#: More than any traceback needs. The limit exists because any group member can write to the folder.
_LARGEST_BYTES = 1 << 20


#: Names of processes that have a rank's variables and are no rank.
SHELLS = frozenset({"bash", "sh", "dash", "srun", "tee"})


class _Words(msgspec.Struct, frozen=True):
    message: str
    extraInfo: dict[str, str] = {}


class _ErrorFile(msgspec.Struct, frozen=True):
    message: _Words | str


def write_error_file(path: Path, message: str, at: float) -> None:
    """Write `message` to torch elastic's error file. `at` is in seconds since 1970. Raises OSError."""
    path.write_text(json_line(_ErrorFile(_Words(message, {"timestamp": str(int(at))}))), encoding="utf-8")


def read_error_file(path: Path) -> str:
    """Return the message; empty if it is missing or damaged."""
    try:
        found = tolerant.decode(read_plain(path, _LARGEST_BYTES), _ErrorFile)
    except OSError:
        return ""
    if found is None:
        return ""
    return found.message.message if isinstance(found.message, _Words) else found.message


class GroupProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's progress in one process group. All ranks number a group's collectives alike, from 1."""

    rank: int
    group: str  # torch's name, the same on all its ranks
    about: str = ""  # the program's description; may be empty
    enqueued: int = 0  # the last operation that the program requested
    completed: int = 0  # the last operation known to be completed
    operation: str = ""  # of the last requested operation: `all_reduce`


def read_dump(data: bytes, rank: int) -> list[GroupProgress]:
    """Return the progress of `rank` in each process group of a dump, by name. Raises ValueError if it is no dump."""
    dump = _plain(data)
    entries = dump.get("entries")
    status = dump.get("pg_status")
    if not isinstance(entries, list) and not isinstance(status, Mapping):
        raise ValueError("not a flight recorder dump: it has neither entries nor pg_status")
    found: dict[str, GroupProgress] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and not entry.get("is_p2p"):
            _add(found, entry, rank)
    for name, group in status.items() if isinstance(status, Mapping) else ():
        if isinstance(group, Mapping):
            known = found.get(str(name)) or GroupProgress(rank=rank, group=str(name))
            found[known.group] = msgspec.structs.replace(
                known,
                enqueued=max(known.enqueued, _number(group.get("last_enqueued_collective"))),
                completed=max(known.completed, _number(group.get("last_completed_collective"))),
            )
    return [found[name] for name in sorted(found)]


def _add(found: dict[str, GroupProgress], entry: Mapping[str, Any], rank: int) -> None:
    """Add one recorded operation to the progress of its group."""
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
    except Exception as error:  # a truncated pickle can raise any exception
        raise ValueError(f"not a flight recorder dump: {error}") from None
    if not isinstance(value, Mapping):
        raise ValueError("not a flight recorder dump: not a dictionary")
    return value


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler for numbers, texts, lists and dictionaries; it creates no object of any class."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(f"it refers to {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise ValueError("it refers to something outside")


def _number(value: Any) -> int:
    try:
        return max(0, int(value))
    except (TypeError, ValueError, OverflowError):
        return 0


#: Parts of lines that a rank prints when it lost a peer, or waited too long for one, over gloo or NCCL,
#: by their meaning. Programs that read whole logs use the same lists (`words_of` in triage's table of rules).
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
#: A sentence with nothing beyond the exit code or signal.
_NO_WORD = re.compile(r"exited with status \S+|killed by (signal )?\S+")


def is_lost_peer(message: str) -> bool:
    """Return True if `message`, from a rank or its launcher, reports that a peer was lost earlier."""
    text = message.lower()
    return message.startswith(_FOLLOWED) or any(words in text for words in _LOST_PEER)


def failure_sentence(exit_code: int | None, signal_number: int | None, message: str, followed: bool) -> str:
    """Return in one line how a rank ended: its signal, the first line of `message`, or its exit status.

    `followed`: the rank failed because another rank had failed.
    """
    own = message.splitlines()[0] if message else ""
    if signal_number is not None:
        own = f"killed by {signal_name(signal_number)}"
    elif not own:
        own = f"exited with status {exit_code}"
    return f"{_FOLLOWED}{own}" if followed else own


def says_nothing(sentence: str) -> bool:
    """Return True if a launcher's sentence contains no message of the rank itself."""
    return not sentence or bool(_NO_WORD.fullmatch(sentence))


def signal_name(number: int) -> str:
    """Return a signal's name, such as `SIGKILL`, or `signal 64` if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


#: Characters of text in a line. JSON writes each with six bytes at most, plus some hundred bytes for the rest.
_PIECE = 120


class RankStack(msgspec.Struct, frozen=True):
    """The Python stacks of one rank's threads, or why there are none."""

    rank: int
    node: str = ""
    pid: int | None = None
    state: str = ""  # the process state of /proc: R, S, D, T, ...
    text: str = ""  # faulthandler's output, the main thread last; empty if the process did not answer


def pieces(stack: RankStack) -> Iterator[RankStack]:
    """Split the text of `stack` into pieces that each fit one line."""
    for start in range(0, max(1, len(stack.text)), _PIECE):
        yield msgspec.structs.replace(stack, text=stack.text[start : start + _PIECE])


def joined(found: Iterable[RankStack]) -> list[RankStack]:
    """Join pieces into stacks, by rank. A rank's pieces must be in order."""
    stacks: dict[tuple[str, int], RankStack] = {}
    for piece in found:
        before = stacks.get((piece.node, piece.rank))
        text = before.text + piece.text if before else piece.text
        stacks[piece.node, piece.rank] = msgspec.structs.replace(piece, text=text)
    return sorted(stacks.values(), key=lambda stack: stack.rank)
