"""Bringing a run's data sets back: to where it had them, or to a folder; proven, and nothing is overwritten."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.units import bytes_words
from opsctl.transfer.backups.data_remote import FOLDER, FarRunData, OfRun, Part
from opsctl.transfer.backups.data_sets import FOLDER as WHOLE_FOLDER
from opsctl.transfer.backups.data_sets import PAIR, opened, part_of
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.sources import Source, digest_of
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import Expected
from trainer.recipe.data_options import SPLITS, weighted_file_key


@dataclass(frozen=True)
class BroughtSet:
    """A set that is there again."""

    options: tuple[str, ...]
    was: str
    path: str  # now
    files: int  # fetched
    bytes: int
    there: int  # files that were there already, the same


def bring_data_back(
    store: Store, data: FarRunData, into: Path | None, flow: Flow, say: Callable[[str], None]
) -> list[BroughtSet]:
    """All sets of a run; into: below this folder, each in a folder of its own. say: told of each.

    A pair's `.idx` comes last: where it is, the pair is whole. Raises OpsctlError where something else is in a place,
    where a disk has no room, for what is not there as it was; StoreError.
    """
    places = {one.path: one.path if into is None else _below(into, one) for one in data.sets}
    missing = {
        one.path: _missing(one, places[one.path]) for one in data.sets
    }  # all are looked at before any is fetched
    done = []
    for one in data.sets:
        parts, path = missing[one.path], places[one.path]
        size = sum(part.bytes for part in parts.values())
        _fetch(store, one, path, parts, flow)
        there = len(one.parts) - len(parts)
        done.append(BroughtSet(one.options, one.path, path, len(parts), size, there))
        say(f"{path}: {len(parts)} files, {bytes_words(size)}, each as it was sent; {there} were there")
    return done


def changes_to_make(done: list[BroughtSet]) -> list[str]:
    """What has to be changed where sets are not where they were, a line each."""
    files = {option: one.path for one in done for option in one.options if option in map(weighted_file_key, SPLITS)}
    lines = []
    for one in done:
        for option in one.options:
            is_inside = option in files and one.path != files[option]
            where = f"the weighted split file {files[option]}" if is_inside else f"[data] {option}"
            if one.path != one.was:
                lines.append(f"{where}: {one.was} is {one.path} now")
    return lines


def _below(into: Path, one: OfRun) -> str:
    folder = into.absolute() / one.folder
    return str(folder if one.kind == WHOLE_FOLDER else folder / Path(one.path).name)


def _missing(one: OfRun, path: str) -> dict[str, Part]:
    """What is to be fetched. Raises OpsctlError where something else is in the place."""
    missing = {}
    for name, part in one.parts.items():
        file = part_of(one.kind, path, name)
        if not os.path.lexists(file):
            missing[name] = part
            continue
        with opened(file, Expected()) as source:
            is_same = source.bytes == part.bytes and digest_of(source) == part.xxh64
        if not is_same:
            raise OpsctlError(
                f"{file} is there and is not what was sent, and nothing is overwritten: move it away, or give --into"
            )
    return missing


def _fetch(store: Store, one: OfRun, path: str, parts: dict[str, Part], flow: Flow) -> None:
    by_name = {part_of(one.kind, path, name).name: part for name, part in parts.items()}
    if not by_name:
        return
    folder = part_of(one.kind, path, next(iter(parts))).parent
    folder.mkdir(parents=True, exist_ok=True)
    room, size = os.statvfs(folder), sum(part.bytes for part in parts.values())
    free = room.f_bavail * room.f_frsize
    if size > free:
        raise OpsctlError(f"{folder} has {bytes_words(free)} free, and {bytes_words(size)} are to come")

    def source(name: str) -> Source:
        part = by_name[name]
        far = f"{FOLDER}/{one.folder}/{part.name}"
        return store.source(far, Expected(part.bytes, part.xxh64))

    last = {name for name in by_name if one.kind == PAIR and name.endswith(".idx")}
    for names in ([name for name in by_name if name not in last], sorted(last)):
        store.fetch(names, source, folder, flow).raise_faults()
