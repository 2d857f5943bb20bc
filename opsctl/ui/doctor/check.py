"""What a check of the doctor's is: a question, a pure function of what was seen, and what of that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.ui.doctor.observed import Seen


class State(StrEnum):
    """How a check ends, the best first."""

    OK = "ok"
    OPTIONAL = "optional"  # not there, and nothing of this run needs it
    UNKNOWN = "unknown"
    MISSING = "missing"


@dataclass(frozen=True)
class Result:
    """The answer to a check's question."""

    state: State
    text: str
    todo: str = ""  # what to type


@dataclass(frozen=True)
class Check:
    """One of them."""

    name: str  # what its line begins with: "output folder"
    question: str  # for the page
    look: Callable[[Seen], Result | None]  # None: it has nothing to do with what is at hand
    needs: str = ""  # the source without which it is blind


class PrintedCheck(Struct, frozen=True, kw_only=True):
    """One check's answer."""

    name: Annotated[str, Meta(description="The check.")]
    state: Annotated[
        State,
        Meta(description="`ok`, `missing`, `unknown` where nobody can see, `optional`: not there, not needed."),
    ]
    text: Annotated[str, Meta(description="What it found.")]
    todo: Annotated[str, Meta(description="What to type; empty where nothing is to be done.")]


def examined(checks: Iterable[Check], seen: Seen) -> list[PrintedCheck]:
    """The answers, the worst last. Where a source could not be looked at, the first check that needs it says why."""
    found: list[PrintedCheck] = []
    told: set[str] = set()
    for check in checks:
        why = seen.problems.get(check.needs, "") if check.needs else ""
        if why and check.needs in told:
            continue
        told.update({check.needs} if why else ())
        result = Result(State.UNKNOWN, why) if why else check.look(seen)
        if result is not None:
            found.append(PrintedCheck(name=check.name, state=result.state, text=result.text, todo=result.todo))
    return sorted(found, key=lambda one: list(State).index(one.state))


def is_well(answers: Iterable[PrintedCheck]) -> bool:
    """Whether nothing is missing, and nothing that should be seen could not be."""
    return all(one.state in (State.OK, State.OPTIONAL) for one in answers)


def ok(text: str) -> Result:
    """All is well."""
    return Result(State.OK, text)


def optional(text: str, todo: str = "") -> Result:
    """It is not there, and need not be."""
    return Result(State.OPTIONAL, text, todo)


def unknown(text: str, todo: str = "") -> Result:
    """Nobody can tell from here."""
    return Result(State.UNKNOWN, text, todo)


def missing(text: str, todo: str) -> Result:
    """It has to be there."""
    return Result(State.MISSING, text, todo)
