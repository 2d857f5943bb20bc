"""A rank's stack as text to frames, and what they say of it: what it waits in, or what it does instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from trainer.formats.attempt.error_file import RankStack

_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) .*$", re.MULTILINE)
#: What torch.distributed and DeepSpeed's comm call the operations in which ranks wait for each other.
COLLECTIVES = frozenset(
    (
        *("all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_coalesced", "all_gather_into_tensor"),
        *("all_gather_object", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_coalesced", "reduce"),
        *("broadcast", "broadcast_object_list", "gather", "gather_object", "scatter", "scatter_object_list"),
        *("all_to_all", "all_to_all_single", "barrier", "monitored_barrier", "inference_all_reduce"),
    )
)
#: Of two ranks, or of a store: who waits in one waits for somebody, and nothing says that all are to come.
BETWEEN_TWO = frozenset(("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"))
#: What waits for ranks' numbers and addresses.
MEETING = frozenset(("init_process_group", "new_group", "rendezvous", "destroy_process_group"))
#: What waiting is called whose operation nothing names.
WAIT = "wait"
#: Files in which those are defined; elsewhere a function of such a name is somebody's own.
_OF_TORCH = re.compile(r"(^|/)(torch/distributed/|deepspeed/(comm|runtime/pipe/p2p))")
#: Work handles are waited for in C++: the innermost Python frame is then the one that calls `wait`, in one of these
#: files, and a native one, where those are known, has such a name.
_WAITS_IN = re.compile(r"(^|/)(trainer/parallel/|megatron/core/(tensor|pipeline)_parallel/)")
_NATIVE_WAIT = re.compile(
    r"(ncclGroupEnd|waitRecv|waitSend|Work.*::wait|cuda(Stream|Device|Event)Synchronize|cuStreamSynchronize)"
)
_PYTHON = re.compile(r"\.py$|^<")
_LIBRARY = re.compile(r"(^|/)(python3\.\d+/|torch/|deepspeed/)|^<frozen ")
_DATA = re.compile(r"(^|/)(torch/utils/data/|trainer/data/|datasets?/)|dataloader|data_loader", re.IGNORECASE)
_SAVE = re.compile(r"(^|/)(trainer/checkpoint/|torch/serialization|torch/distributed/checkpoint/)|checkpointing")
#: Process states (proc(5)) in which nothing goes on, whatever the stack says.
_STATES = {"T": "stopped", "t": "stopped in a debugger", "D": "waits for the disk", "Z": "dead", "gone": "gone"}
#: Frames that are kept of a stack: what is further out is the way from the program's start.
_MOST_FRAMES = 12
#: Of them in a sentence.
_REPORTED = 3


@dataclass(frozen=True)
class Frame:
    """One call, as it stands on the stack."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({PurePath(self.file).name}:{self.line})"


@dataclass(frozen=True)
class Place:
    """Where a rank is. Two of the same place have equal `key`s."""

    frames: tuple[Frame, ...]  # innermost first; empty: it did not answer
    collective: str  # what it waits in; empty where it is none
    trouble: str  # why its process does nothing: `stopped`; empty where it may

    @property
    def key(self) -> tuple[object, ...]:
        """What is equal where ranks are at the same place.

        The line counts where it tells one call from another: not in the innermost frame, which may be a loop that
        waits, nor in libraries, whose loops wait inside.
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
        """Whether it was seen, or its process's state alone says that nothing goes on there."""
        return bool(self.frames) or self.trouble in _STATES.values()

    @property
    def words(self) -> str:
        """`waits in all_reduce < reason < _steps`, `is stopped in read < __next__`, `is in data loading: ...`."""
        if not self.frames:
            return f"did not answer ({self.trouble or 'no reason is known'})"
        calls = " < ".join(one.function for one in self._reported_frames())
        if self.trouble:
            verb = self.trouble if self.trouble.startswith("waits") else f"is {self.trouble}"
            return f"{verb} in {calls}"
        return f"waits in {calls}" if self.collective else f"is {self._doing()}{calls}"

    def _reported_frames(self) -> Sequence[Frame]:
        """The frames that are told: from the collective's own outwards, else the innermost ones."""
        names = [one.function for one in self.frames]
        start = names.index(self.collective) if self.collective in names else 0
        outwards = [one for one in self.frames[start + 1 :] if not _OF_TORCH.search(one.file)]
        return [*self.frames[start : start + 1], *outwards][:_REPORTED]

    @property
    def caller(self) -> Frame | None:
        """Who called what it waits in; None where that is not on the stack."""
        names = [one.function for one in self.frames]
        start = names.index(self.collective) + 1 if self.collective in names else 0
        return next((one for one in self.frames[start:] if not _OF_TORCH.search(one.file)), None)

    def _doing(self) -> str:
        own = [one.file for one in self.frames]
        if any(_SAVE.search(file) for file in own):
            return "in a save: in "
        return "in data loading: in " if any(_DATA.search(file) for file in own) else "in "


def place_of(stack: RankStack) -> Place:
    """Where a rank's main thread is, and whether its process can go on at all."""
    main = _THREAD.split(stack.text)[-1]
    frames = tuple(Frame(match["function"], match["file"], int(match["line"])) for match in _FRAME.finditer(main))
    trouble = _STATES.get(stack.state, "")
    if not frames and not trouble:
        trouble = f"process state {stack.state}" if stack.state else "no process"
    return Place(frames[:_MOST_FRAMES], collective_of(frames), trouble)


def collective_of(frames: Sequence[Frame]) -> str:
    """What ranks wait in together at these frames, as the program called it; empty where it is nothing of the kind.

    `all_gather_object` where that is what was called, though it waits in an `all_gather`. Of operations between two
    ranks, and of those at the start, the name as well: see `is_of_all`.
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
            return found  # also a signal's handler, or a hook, that a collective was left for
    return found


def is_of_all(collective: str) -> bool:
    """Whether every rank of a group has to come for it to end."""
    return collective in COLLECTIVES
