"""What of a walk is still to be done: a few folders, whatever the number of those that are done."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class Pending(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder that is still to be walked through, with all under it; or what comes in it after a name.

    Of one with `after`, the folders up to that name are pending by themselves, or done.
    """

    place: str = ""  # from the root on, with slashes between; empty: the root
    after: str = ""  # names up to this one have been seen


#: Where a walk begins.
BEGINNING = (Pending(),)
#: Folders that could not be looked into are told one by one up to so many.
MOST_UNREAD = 100


class Unread(msgspec.Struct, frozen=True):
    """A folder that could not be looked into."""

    place: str
    why: str


@dataclass(frozen=True)
class Walked:
    """How far a walk has come."""

    pending: tuple[Pending, ...]  # empty: all is seen
    entries: int  # seen this time; the root is none
    unread: tuple[Unread, ...] = ()  # the first of them; what vanishes meanwhile is not among them
    unread_count: int = 0
    hanging: tuple[str, ...] = ()  # places that did not answer; they are pending still, after all others

    @property
    def is_done(self) -> bool:
        """Whether all has been seen that can be."""
        return not self.pending


def under(place: str, name: str) -> str:
    """The place `name` in the folder `place`."""
    return f"{place}/{name}" if place else name
