"""Snapshots of a training in host memory, from which a restart in the same job resumes.

Each rank writes the files that a checkpoint would have of it, its piece, into a folder of /dev/shm, and sends a copy to
the same local rank of the next node. A restart checks the pieces of the newest iteration and publishes them as a
checkpoint, if all are there. Loading, and everything that is refused, is then the same as from disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist

from trainer.checkpoint.destination import Destination, Overtaken
from trainer.checkpoint.publish import make_room, publish, write
from trainer.core.console import complain, printable, say_if
from trainer.core.files import HeldFolder, create_file, fsync, make_folder, read_plain, write_atomically
from trainer.core.memory_limit import limit_of_cgroups, memory_lines
from trainer.formats.checkpoint.history import ROLLBACKS
from trainer.formats.checkpoint.manifest import (
    LARGEST_MANIFEST_BYTES,
    MEMORY,
    MEMORY_PREFIX,
    WAY_OUT,
    Manifest,
    SavedFile,
    check_checksums,
    check_sizes,
    tag_of,
)
from trainer.formats.checkpoint.starting import latest_reached
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_file_text, plain
from trainer.formats.logs.log_lines import CheckpointSaved, write_checkpoint_line
from trainer.formats.tolerant import decode
from trainer.parallel.agreement import Refusal, from_first_rank, on_every_rank

ROOT = MEMORY
#: Describes a piece. It is written last.
PIECE = "piece.json"
#: The complete set, and the one that is written.
GENERATIONS = 2
_CHUNK_BYTES = 1 << 26
#: Folders of other trainings that were not changed for so long are left over from a killed job.
_LEFT_OVER_S = 3600.0


#: An exchange ends if the network does nothing for so long.
_SILENT_S = 300.0

T = TypeVar("T")


class OtherFailed(CheckpointError):
    """This rank's snapshot is written, and another rank, which reports why, has none."""


class Piece(msgspec.Struct, frozen=True):
    """One rank's files of one iteration."""

    attempt: str  # a name that no two starts have
    rank: int
    ranks: int
    rollbacks: int  # bytes of the rollback record: a set from before a rollback is not used
    manifest: Manifest  # with this rank's files


@dataclass(frozen=True)
class Nodes:
    """The place of this rank among the nodes. Every node has the same number of ranks."""

    node: str
    local_rank: int
    local_size: int

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Nodes:
        """Return the place that the launcher gave this rank."""
        local_size = int(environment.get("LOCAL_WORLD_SIZE", str(dist.get_world_size())))
        node = environment.get("SLURMD_NODENAME") or socket.gethostname()
        return cls(node, int(environment.get("LOCAL_RANK", str(dist.get_rank()))), local_size)


@dataclass(frozen=True)
class Memory:
    """This node's memory of one run in one job: folders `trainer-memory.JOB.RUN.NODE.ATTEMPT`, one for each start."""

    job: str
    run: str
    nodes: Nodes

    @classmethod
    def of(cls, destination: Destination) -> Memory:
        """Return that of the training that saves to `destination`, which exists. Collective."""
        run = from_first_rank(lambda: f"{destination.folder.place().stat().st_ino:x}", (OSError,))
        return cls(os.environ.get("SLURM_JOB_ID", "0"), run, Nodes.here())

    def create(self) -> HeldFolder:
        """Create the folder of this start, which only the account can use. Collective. Raises Refusal."""
        attempt = from_first_rank(lambda: os.urandom(8).hex(), ())
        path = ROOT / ".".join((MEMORY_PREFIX, self.job, self.run, self.nodes.node, attempt))

        def make() -> HeldFolder:
            with contextlib.suppress(FileExistsError):  # by another rank of this node
                path.mkdir(0o700)
            if not _is_own(path, stat.S_IFDIR):
                raise CheckpointError(f"{path} is not a folder that only this account can use: remove it")
            folder = HeldFolder(path)
            folder.descriptor()
            return folder

        return on_every_rank(make, (CheckpointError, OSError))

    def folders(self) -> Iterator[tuple[Path, bool]]:
        """Yield all folders of the account on this node, and whether they are this run's."""
        for path in sorted(ROOT.glob(f"{MEMORY_PREFIX}.*")):
            words = path.name.split(".")
            own = words[2:3] == [self.run] and ".".join(words[3:-1]) == self.nodes.node
            if _is_own(path, stat.S_IFDIR):
                yield path, own
            elif own and self.nodes.local_rank == 0:
                complain(f"trainer: {printable(str(path))} is not a folder that only this account can use: not read")

    def pieces(self) -> dict[Path, Piece]:
        """Return the pieces of this job's earlier starts on this node. Their files are not checked yet."""
        found: dict[Path, Piece] = {}
        for folder, own in self.folders():
            if own and folder.name.startswith(f"{MEMORY_PREFIX}.{self.job}."):
                for path in sorted(folder.glob(f"{tag_of(0)[:-1]}*")):
                    piece = _read(path, folder.name.rpartition(".")[2])
                    if piece is not None:
                        found[path] = piece
        return found

    def remove(self, kept: Path | None = None) -> None:
        """Remove this run's folders on this node except `kept`, and what killed jobs of the account left over."""
        for folder, own in self.folders():
            if folder != kept and (own or time.time() - _changed_at(folder) > _LEFT_OVER_S):
                shutil.rmtree(folder, ignore_errors=True)


def _is_own(path: Path, kind: int) -> bool:
    """Return whether it is of that kind, no link, and only this account can use it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _changed_at(folder: Path) -> float:
    with contextlib.suppress(OSError):
        return folder.stat().st_mtime
    return time.time()


def _read(folder: Path, attempt: str) -> Piece | None:
    """Return the piece in `folder`; None, with a line, if it is not one of that attempt. Unfinished: without a line."""
    try:
        piece = decode(read_plain(folder / PIECE, LARGEST_MANIFEST_BYTES), Piece)
    except FileNotFoundError:
        return None
    except OSError as error:
        complain(f"trainer: {folder / PIECE} cannot be read: {error.strerror}")
        return None
    if piece is None or piece.attempt != attempt or _name(piece.manifest.iteration, piece.rank) != folder.name:
        complain(f"trainer: {folder} is no piece of attempt {attempt}: not used")
        return None
    return piece


def _name(iteration: int, rank: int) -> str:
    return f"{tag_of(iteration)}.rank{rank}"


def _check(folder: Path, piece: Piece) -> None:
    """Raise CheckpointError if a file is damaged, missing, a link, or not of this account."""
    for path, kind in [(folder, stat.S_IFDIR), *((folder / name, stat.S_IFREG) for name in piece.manifest.files)]:
        if path.exists() and not _is_own(path, kind):
            raise CheckpointError(f"{path} is not this account's own file")
    check_sizes(folder, piece.manifest)
    check_checksums(folder, piece.manifest)


def publish_from_memory(memory: Memory, destination: Destination) -> None:
    """Make the newest complete set of pieces the latest checkpoint, if it is newer than that on disk.

    Collective. If there is none, or a piece is damaged, this is reported, and the training resumes from disk. Raises
    Overtaken if another writer has the training, and Refusal if its folder cannot be read.
    """
    say = say_if(dist.get_rank() == 0)
    here = memory.pieces()
    on_disk, rollbacks = from_first_rank(lambda: _on_disk(destination), (OSError,))
    everywhere: list[list[tuple[int, str, int, int, int]]] = [[]] * dist.get_world_size()
    own = [(one.manifest.iteration, one.attempt, one.rank, one.ranks, one.rollbacks) for one in here.values()]
    dist.all_gather_object(everywhere, own)
    known = {one for of_rank in everywhere for one in of_rank}
    for iteration, attempt, ranks in sorted({(one[0], one[1], one[3]) for one in known}, reverse=True):
        if iteration <= on_disk:
            break
        of_set = [one for one in known if one[:2] == (iteration, attempt)]
        missing = sorted(set(range(ranks)) - {one[2] for one in of_set})
        if missing:
            why = f"the piece of rank {missing[0]} is missing"
        elif any(one[4] != rollbacks for one in of_set if one[2] == 0):
            why = "the training went back to an earlier checkpoint since"
        else:
            pieces = {
                path: one for path, one in here.items() if (one.manifest.iteration, one.attempt) == (iteration, attempt)
            }
            try:
                _publish(memory, destination, iteration, pieces, ranks)
            except Overtaken:
                raise
            except Refusal as refusal:
                why = str(refusal)
            else:
                say(f"resuming from memory: iteration {iteration}")
                say(write_checkpoint_line(CheckpointSaved(iteration, str(destination.folder.path))))
                return
        say(f"not resuming from memory of iteration {iteration}: {why}")


def _on_disk(destination: Destination) -> tuple[int, int]:
    """Return the iteration of the latest checkpoint, -1 without one, and the size of the rollback record."""
    root = destination.folder.place()
    latest = latest_reached(root)
    return latest[1].iteration if latest else -1, _size_of_rollbacks(root)


def _size_of_rollbacks(root: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (root / ROLLBACKS).stat().st_size
    return 0


def _publish(memory: Memory, destination: Destination, iteration: int, here: Mapping[Path, Piece], ranks: int) -> None:
    """Check all pieces, each rank some of those on its node, and publish a sound copy of each."""
    sound: dict[int, tuple[Path, Piece]] = {}
    problems: list[str] = []
    for path, piece in here.items():
        if piece.rank % memory.nodes.local_size == memory.nodes.local_rank:
            try:
                _check(path, piece)
                sound[piece.rank] = path, piece
            except (CheckpointError, OSError) as error:
                problems.append(str(error).partition(WAY_OUT)[0])
    found: list[tuple[list[int], list[str]]] = [([], [])] * dist.get_world_size()
    dist.all_gather_object(found, (sorted(sound), problems))
    holders = {rank: holder for holder, (held, _) in reversed([*enumerate(found)]) for rank in held}
    if len(holders) < ranks:
        raise Refusal("; ".join(text for _, texts in found for text in texts))
    first: list[Manifest | None] = [sound[0][1].manifest if holders[0] == dist.get_rank() else None]
    dist.broadcast_object_list(first, src=holders[0])
    assert first[0] is not None
    saved = msgspec.structs.replace(first[0].saved, from_memory=True) if first[0].saved else None
    manifest = msgspec.structs.replace(first[0], files={}, saved=saved)
    mine = [sound[rank] for rank, holder in holders.items() if holder == dist.get_rank()]
    name = make_room(destination, iteration)
    publish(destination, name, manifest, lambda: _copied(mine, destination.folder.place() / name))


def _copied(pieces: Sequence[tuple[Path, Piece]], target: Path) -> dict[str, SavedFile]:
    """Copy the pieces' files durably into `target`; return them by name."""
    make_folder(target)
    files: dict[str, SavedFile] = {}
    for folder, piece in pieces:
        for name, file in piece.manifest.files.items():
            with (folder / name).open("rb") as source, os.fdopen(create_file(target / name), "wb") as copy:
                shutil.copyfileobj(source, copy, _CHUNK_BYTES)
                copy.flush()
                os.fsync(copy.fileno())
            files[name] = file
    fsync(target)
    return files


@dataclass(frozen=True)
class Writer:
    """The writing of one rank's pieces, and the exchange with its partners. Not collective; runs in a thread."""

    folder: HeldFolder
    destination: Destination
    nodes: Nodes
    group: Any = None  # gloo's, over all ranks; None: there is one node

    def write(self, take: Callable[[], Mapping[str, Any]], manifest: Manifest) -> dict[str, SavedFile]:
        """Write what `take` returns as the piece, and receive that of the rank on the node before.

        All ranks write, or none: Raises CheckpointError and OSError, or OtherFailed where another rank did.
        """
        rank, root = dist.get_rank(), self.folder.place()
        own = root / _name(manifest.iteration, rank)

        def write_own() -> dict[str, SavedFile]:
            files = write(take(), own)
            rollbacks = 0 if rank else _size_of_rollbacks(self.destination.folder.place())
            attempt = self.folder.path.name.rpartition(".")[2]
            whole = msgspec.structs.replace(manifest, files=files)
            piece = Piece(attempt, rank, dist.get_world_size(), rollbacks, whole)
            write_atomically(own / PIECE, json_file_text(plain(piece)))
            return files

        if self.group is None:
            return write_own()
        files = _unless_one_fails(self.group, write_own)
        to = (rank + self.nodes.local_size) % dist.get_world_size()
        source = (rank - self.nodes.local_size) % dist.get_world_size()
        _exchange(self.group, own, to, root / _name(manifest.iteration, source), source)
        return files

    def remove(self, iteration: int) -> None:
        """Remove this rank's pieces of an iteration, and the copies that it received."""
        with contextlib.suppress(OSError):
            root, size = self.folder.place(), dist.get_world_size()
            for rank in (dist.get_rank(), (dist.get_rank() - self.nodes.local_size) % size):
                shutil.rmtree(root / _name(iteration, rank), ignore_errors=True)

    def remove_all(self) -> None:
        """Remove the folder of this start."""
        shutil.rmtree(self.folder.path, ignore_errors=True)


def open_group() -> Any:
    """Return the group in which snapshots are exchanged. Collective. A silent network ends an exchange in time."""
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=_SILENT_S))


def _unless_one_fails(group: Any, act: Callable[[], T]) -> T:
    """Return the result of `act` once it has succeeded on every rank, so that none waits for one that failed."""
    result: list[T] = []
    try:
        result.append(act())
    finally:  # also after an error of any kind
        failed = torch.tensor([len(result) ^ 1])
        dist.all_reduce(failed, group=group)
    if int(failed):
        raise OtherFailed("another rank could not write its piece")
    return result[0]


def _exchange(group: Any, own: Path, to: int, received: Path, source: int) -> None:
    """Send the files in `own` to a rank, and receive the other's into the new folder `received`."""
    names = sorted(path.name for path in own.iterdir() if path.name != PIECE)
    listed = json.dumps([(name, (own / name).stat().st_size) for name in (*names, PIECE)]).encode()
    sends = [dist.isend(torch.tensor([len(listed)]), to, group=group)]
    sends.append(dist.isend(torch.frombuffer(bytearray(listed), dtype=torch.uint8), to, group=group))
    length = torch.zeros(1, dtype=torch.int64)
    dist.recv(length, source, group=group)
    text = torch.zeros(int(length), dtype=torch.uint8)
    dist.recv(text, source, group=group)

    def make_room() -> list[str]:
        make_folder(received)
        files = json.loads(bytes(text.numpy()))
        for name, size in files:
            if re.fullmatch(r"[^/\x00]+", name) is None:
                raise CheckpointError(f"rank {source} sent a file named {name!a}")
            with os.fdopen(create_file(received / name), "wb") as file:
                if size:
                    os.posix_fallocate(file.fileno(), 0, size)  # a page that memory has no room for is a signal
        return [name for name, _ in files]

    arriving = _unless_one_fails(group, make_room)
    for name in (*names, PIECE):
        sends += [dist.isend(part, to, group=group) for part in _mapped(own / name)]
    for name in arriving:
        for part in _mapped(received / name):
            dist.recv(part, source, group=group)
    for send in sends:
        if send is not None:
            send.wait()


def _mapped(path: Path) -> tuple[torch.Tensor, ...]:
    """Return the bytes of a file in parts that share its memory."""
    size = path.stat().st_size
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8).split(_CHUNK_BYTES) if size else ()


def refuse_too_little_memory(nodes: Nodes, bytes_of_rank: int, is_copied: bool) -> None:
    """Raise Refusal if this node's memory does not hold what the snapshots take. Collective.

    They are two generations, of the node before too if `is_copied`, and the copy that is being written.
    """
    of_ranks: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(of_ranks, bytes_of_rank)
    first = dist.get_rank() - nodes.local_rank
    own = sum(of_ranks[first : first + nodes.local_size])
    before = sum(of_ranks[(first - nodes.local_size + one) % len(of_ranks)] for one in range(nodes.local_size))
    kept = GENERATIONS * (own + (before if is_copied else 0))

    def look() -> None:
        limit = limit_of_cgroups()
        free = [memory_lines().get("MemAvailable", 0), *([limit[0] - limit[1]] if limit else [])]
        for needed, there, where in (
            (kept, shutil.disk_usage(ROOT).free, str(ROOT)),
            (kept + own, min(free), "the memory of this job"),
        ):
            if needed > there:
                raise CheckpointError(
                    f"--snapshot-interval: snapshots on {nodes.node} take up to {needed / 2**30:.2f} GiB, and {where} "
                    f"has {there / 2**30:.2f} GiB free: remove the option, or give the job more memory"
                )

    on_every_rank(look, (CheckpointError, OSError))
