"""Parse a rank's stack into frames, and find out what it waits in or does. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from trainer.formats.attempt.error_file import RankStack

_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) .*$", re.MULTILINE)
#: Operations of torch.distributed and DeepSpeed's comm in which ranks wait for each other.
COLLECTIVES = frozenset(
    (
        *("all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_coalesced", "all_gather_into_tensor"),
        *("all_gather_object", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_coalesced", "reduce"),
        *("broadcast", "broadcast_object_list", "gather", "gather_object", "scatter", "scatter_object_list"),
        *("all_to_all", "all_to_all_single", "barrier", "monitored_barrier", "inference_all_reduce"),
    )
)
#: Operations between two ranks, or with a store: a wait in one does not mean that all ranks must join.
BETWEEN_TWO = frozenset(("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"))
#: Operations that exchange ranks' numbers and addresses.
MEETING = frozenset(("init_process_group", "new_group", "rendezvous", "destroy_process_group"))
#: The name of a wait in an unknown operation.
WAIT = "wait"
#: Files that define these operations; elsewhere a function of such a name is a program's own.
_OF_TORCH = re.compile(r"(^|/)(torch/distributed/|deepspeed/(comm|runtime/pipe/p2p))")
#: Waits for work handles happen in C++: the innermost Python frame then calls `wait` in one of these files, and a
#: native frame, if known, has such a name.
_WAITS_IN = re.compile(r"(^|/)(trainer/parallel/|megatron/core/(tensor|pipeline)_parallel/)")
_NATIVE_WAIT = re.compile(
    r"(ncclGroupEnd|waitRecv|waitSend|Work.*::wait|cuda(Stream|Device|Event)Synchronize|cuStreamSynchronize)"
)
_PYTHON = re.compile(r"\.py$|^<")
_LIBRARY = re.compile(r"(^|/)(python3\.\d+/|torch/|deepspeed/)|^<frozen ")
_DATA = re.compile(r"(^|/)(torch/utils/data/|trainer/data/|datasets?/)|dataloader|data_loader", re.IGNORECASE)
_SAVE = re.compile(r"(^|/)(trainer/checkpoint/|torch/serialization|torch/distributed/checkpoint/)|checkpointing")
#: Process states (proc(5)) in which nothing runs, whatever the stack shows.
_STATES = {"T": "stopped", "t": "stopped in a debugger", "D": "waits for the disk", "Z": "dead", "gone": "gone"}
#: Innermost frames of a stack that are kept; the outer ones lead from the program's start.
_MOST_FRAMES = 12
#: Frames that a sentence names.
_REPORTED = 3


@dataclass(frozen=True)
class Frame:
    """One call on the stack."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({PurePath(self.file).name}:{self.line})"


@dataclass(frozen=True)
class Place:
    """The place of a rank. Equal places have equal `key`s."""

    frames: tuple[Frame, ...]  # innermost first; empty: no answer
    collective: str  # the collective that it waits in; empty if none
    trouble: str  # why its process cannot run: `stopped`; else empty

    @property
    def key(self) -> tuple[object, ...]:
        """Return a key that is equal for ranks at the same place.

        The line counts only where it distinguishes calls: not in the innermost frame, which may be a waiting loop, nor
        in libraries, whose loops wait inside.
        """
        return (
            self.trouble,
            self.collective,
            tuple(
                (one.function, one.file, 0 if number == 0 or _LIBRARY.search(one.file) else one.line)
                for number, one in enumerate(self.frames)
            ),
        )

    @property
    def is_known(self) -> bool:
        """Return True if it has frames, or if its process's state alone shows that nothing runs."""
        return bool(self.frames) or self.trouble in _STATES.values()

    @property
    def words(self) -> str:
        """`waits in all_reduce < reason < _steps`, `is stopped in read < __next__`, `is in data loading: ...`."""
        if not self.frames:
            return f"did not answer ({self.trouble or 'reason unknown'})"
        calls = " < ".join(one.function for one in self._reported_frames())
        if self.trouble:
            verb = self.trouble if self.trouble.startswith("waits") else f"is {self.trouble}"
            return f"{verb} in {calls}"
        return f"waits in {calls}" if self.collective else f"is {self._doing()}{calls}"

    def _reported_frames(self) -> Sequence[Frame]:
        """Return the frames to report: from the collective outwards, else the innermost ones."""
        names = [one.function for one in self.frames]
        start = names.index(self.collective) if self.collective in names else 0
        outwards = [one for one in self.frames[start + 1 :] if not _OF_TORCH.search(one.file)]
        return [*self.frames[start : start + 1], *outwards][:_REPORTED]

    @property
    def caller(self) -> Frame | None:
        """Return the caller of the collective; None if it is not on the stack."""
        names = [one.function for one in self.frames]
        start = names.index(self.collective) + 1 if self.collective in names else 0
        return next((one for one in self.frames[start:] if not _OF_TORCH.search(one.file)), None)

    def _doing(self) -> str:
        own = [one.file for one in self.frames]
        if any(_SAVE.search(file) for file in own):
            return "in a save: in "
        return "in data loading: in " if any(_DATA.search(file) for file in own) else "in "


def place_of(stack: RankStack) -> Place:
    """Return the place of a rank's main thread, and whether its process can continue."""
    main = _THREAD.split(stack.text)[-1]
    frames = tuple(Frame(match["function"], match["file"], int(match["line"])) for match in _FRAME.finditer(main))
    trouble = _STATES.get(stack.state, "")
    if not frames and not trouble:
        trouble = f"process state {stack.state}" if stack.state else "no process"
    return Place(frames[:_MOST_FRAMES], collective_of(frames), trouble)


def collective_of(frames: Sequence[Frame]) -> str:
    """Return the collective that the frames wait in, as the program called it; empty if there is none.

    For example `all_gather_object` if that was called, although it waits in an `all_gather`. Also returns
    operations between two ranks and those at the start: see `is_of_all`.
    """
    found = WAIT if frames and _WAITS_IN.search(frames[0].file) else ""
    for one in frames:
        if _OF_TORCH.search(one.file):
            if one.function in COLLECTIVES or one.function in BETWEEN_TWO or one.function in MEETING:
                found = one.function
        elif found:
            return found
        elif _NATIVE_WAIT.search(one.function):
            found = WAIT
        elif _PYTHON.search(one.file) and not _LIBRARY.search(one.file):
            return found  # also a signal handler or a hook that interrupted a collective
    return found


def is_of_all(collective: str) -> bool:
    """Return True if the collective needs every rank of a group to end."""
    return collective in COLLECTIVES
