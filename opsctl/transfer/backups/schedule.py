"""The backup policy of a run, and which checkpoints a destination gets by it, each with its reason. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.run.checkpoints.backups import BackedUp, Every, What, plain_url
from opsctl.run.config.schema import BackupTable
from opsctl.run.state.run_view import RunView


@dataclass(frozen=True)
class Policy:
    """The table that counts, and its warnings."""

    table: BackupTable
    warnings: tuple[str, ...] = ()

    @property
    def data_to(self) -> tuple[str, ...]:
        """Return where data sets go."""
        return self.table.data_to or self.table.to

    @property
    def places(self) -> tuple[str, ...]:
        """Return every place that gets something of the run, once."""
        return tuple(dict.fromkeys((*self.table.to, *(self.data_to if self.table.data else ()))))


def policy_of(run: RunView, to: str | None = None, limit: str | None = None) -> Policy:
    """Return what is published; before that what the run file has.

    to: this place in place of the table's. Raises OpsctlError where no place is named.
    """
    written = run.loaded.file.backup if run.loaded else None
    table, warnings = written, ()  # type: BackupTable | None, tuple[str, ...]
    if run.revision is not None:
        table = run.revision.file.backup
        is_other = run.loaded is not None and written != table
        warnings = ("the run file's [backup] is not what is published: opsctl revise publishes it",) * is_other
    if table is None and to is None:
        hint = f" ({warnings[0]})" if warnings else ""
        raise OpsctlError(f"{run.table.name} has no [backup], which says where to: write one, or give --to URL{hint}")
    table = table or BackupTable()
    table = msgspec.structs.replace(
        table,
        to=(plain_url(to),) if to else tuple(plain_url(one) for one in table.to),
        data_to=() if to else tuple(plain_url(one) for one in table.data_to),
        limit=limit or table.limit,
    )
    if not table.to:
        raise OpsctlError(f"[backup] of {run.table.name} names no place: write to = [...], or give --to URL")
    return Policy(table, warnings)


@dataclass(frozen=True)
class Here:
    """A checkpoint of the run as the schedule sees it."""

    iteration: int
    of: str = ""  # checksum of its manifest
    is_full: bool = True  # with optimizer states
    is_pinned: bool = False  # as its manifest says
    problem: str = ""  # why it cannot be sent; empty when it is complete


@dataclass(frozen=True)
class Due:
    """One checkpoint that a destination should have."""

    iteration: int
    what: What
    reason: str  # why it is wanted there
    news: str  # why it has to be sent now: never sent, saved again, lost there


@dataclass(frozen=True)
class Left:
    """One that is wanted there and cannot be sent, or is not sent; `reason` says why."""

    iteration: int
    reason: str


@dataclass(frozen=True)
class Chosen:
    """The checkpoints that a destination should get."""

    due: tuple[Due, ...]  # oldest first
    there: tuple[int, ...]  # those that it has
    left: tuple[Left, ...]  # those that it wants and cannot get


def choose(
    found: Sequence[Here],
    ledger: Iterable[BackedUp],
    policy: BackupTable,
    to: str,
    latest: int | None = None,
    named: Collection[int] | None = None,
    weights_only: bool = False,
) -> Chosen:
    """Return what of `found` the destination `to` should have and has not.

    latest: iteration of the latest; later ones were given up by a rollback. named: these iterations instead of the
    policy's. weights_only: none of them with optimizer states.
    """
    on_record = {(line.iteration, line.what): line for line in ledger if line.to == to}
    due, there, left = [], [], []
    for one in sorted(found, key=lambda found: found.iteration):
        wanted = _wanted(one, policy, named, weights_only)
        if wanted is None:
            continue
        what, reason = wanted
        news = _news(one, what, on_record)
        if not news:
            there.append(one.iteration)
        elif one.problem:
            left.append(Left(one.iteration, one.problem))
        elif latest is not None and one.iteration > latest and named is None:
            left.append(Left(one.iteration, "later than the latest"))
        else:
            due.append(Due(one.iteration, what, reason, news))
    missing = sorted(set(named or ()) - {one.iteration for one in found})
    return Chosen(tuple(due), tuple(there), (*left, *(Left(one, "it is not here") for one in missing)))


def never_whole(policy: BackupTable, until_backed_up: int) -> bool:
    """Return whether retention waits for whole backups that the schedule does not make, so that these stay for ever."""
    return until_backed_up > 0 and (policy.full_every == 0 or until_backed_up % policy.full_every != 0)


def why_none(found: Sequence[Here], policy: BackupTable) -> str:
    """Return why `choose` finds nothing that a destination should have, where no iteration was named."""
    if not found:
        return "there is no checkpoint here yet"
    each = {"full_every": policy.full_every, "weights_every": policy.weights_every}
    every = " or ".join(f"{key} = {number:,}" for key, number in each.items() if number)
    if not every:
        return "no schedule says which: full_every or weights_every under [backup], or --step N for a single one"
    which = f"of {len(found)} here (the newest {found[-1].iteration:,}) none is divided by {every}"
    return f"{which}, or pinned: --step N sends one"


def _wanted(
    one: Here, policy: BackupTable, named: Collection[int] | None, weights_only: bool
) -> tuple[What, str] | None:
    number = one.iteration
    by_policy, form = named is None, Every(policy.full_every, policy.weights_every).form(number)
    full = (
        (number in (named or ()), "named"),
        (by_policy and policy.spikes and one.is_pinned, "pinned as it was saved"),
        (by_policy and number in policy.pinned, "pinned"),
        (by_policy and form is What.FULL, f"a multiple of {policy.full_every:,}"),
    )
    reason = next((words for holds, words in full if holds), None)
    if reason is not None:
        return What.WEIGHTS if weights_only or not one.is_full else What.FULL, reason
    if by_policy and form is What.WEIGHTS:
        return What.WEIGHTS, f"a multiple of {policy.weights_every:,}"
    return None


def _news(one: Here, what: What, on_record: Mapping[tuple[int, What], BackedUp]) -> str:
    """Return why it has to be sent; empty where it is there, in this form or whole."""
    forms = (what,) if what is What.FULL else (What.FULL, What.WEIGHTS)
    lines = [line for form in forms if (line := on_record.get((one.iteration, form))) is not None]
    if any(line.counts and line.of == one.of for line in lines):
        return ""
    same = [line for line in lines if line.of == one.of]
    if any(line.lost for line in same):
        return f"lost there: {next(line.lost for line in same if line.lost)}"
    if same:
        return "not proven there"
    return "another one is there" if lines else "not there yet"
