"""`status --hub`: what the hub's copy of a run says, how old that is, and what cannot be known from there. Pure."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.output import printable
from opsctl.core.timestamps import iso, to_the_second
from opsctl.monitoring.overview import Overview
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.checkpoints.inventory import Checkpoint
from opsctl.transfer.hub.far_run import FarCheckpoint, FarRun
from opsctl.ui.status.json_output import Loss, Progress, Speed, printed_loss, printed_progress, printed_speed
from opsctl.ui.status.screen import ago, labelled, left_text, loss_text, progress_text, speed_text
from opsctl.ui.status.text import paint
from trainer.formats.checkpoint.starting import NO_OPTIMIZER
from trainer.formats.json_text import Moment

#: What only the cluster and the run's own folder can say.
NOT_KNOWN = ("whether it runs now", "queue", "nodes", "attempts", "kill switch", "findings")


class PrintedFarCheckpoint(Struct, frozen=True, kw_only=True):
    """The last checkpoint of which every file is on the hub, with the sizes that its manifest says."""

    iteration: Annotated[int, Meta(description="Iterations done when it was saved.")]
    consumed_samples: Annotated[int, Meta(description="Samples consumed then.")]
    where: Annotated[str, Meta(description="Its folder in the repository, or its branch or tag.")]
    with_optimizer: Annotated[bool, Meta(description="True if it has optimizer states.")]
    sent_at: Annotated[Moment | None, Meta(description="When its manifest, which goes last, was committed.")]


class FarStatus(Struct, frozen=True, kw_only=True):
    """The data of a training in a repository on the hub: as old as `log_age_s`, and without the queue."""

    repo: Annotated[str, Meta(description="The repository.")]
    revision: Annotated[str, Meta(description="The branch, tag or commit that was read.")]
    at: Annotated[Moment, Meta(description="When this was read, by the hub's clock.")]
    log: Annotated[str, Meta(description="Path of the log in the repository.")]
    log_commit: Annotated[str | None, Meta(description="Commit of the log that was read; null without a log.")]
    log_sent_at: Annotated[Moment | None, Meta(description="When the log's last change was committed.")]
    log_age_s: Annotated[float | None, Meta(description="Seconds since then: everything may be so much older.")]
    progress: Annotated[Progress, Meta(description="How far it was.")]
    speed: Annotated[Speed, Meta(description="How fast it went.")]
    left_s: Annotated[float | None, Meta(description="Seconds of training left then, at that speed.")]
    loss: Annotated[Loss | None, Meta(description="The last iteration in the log.")]
    watchdog: Annotated[str | None, Meta(description="Last line of a watchdog at the end of the log.")]
    watchdog_at: Annotated[Moment | None, Meta(description="Time of that line; null without a zone.")]
    checkpoint: Annotated[PrintedFarCheckpoint | None, Meta(description="The last one that is there completely.")]
    incomplete_checkpoints: Annotated[list[str], Meta(description="Newer ones that are there in part, and how.")]
    not_known: Annotated[list[str], Meta(description="Facts that the hub's copy does not have.")]


def printed_far(run: FarRun) -> FarStatus:
    """Return the status as printed with `--json`."""
    overview = _overview(run)
    return FarStatus(
        repo=str(run.repo),
        revision=run.repo.revision,
        at=to_the_second(run.at),
        log=run.log,
        log_commit=run.log_commit,
        log_sent_at=to_the_second(run.log_sent_at),
        log_age_s=None if run.log_sent_at is None else (run.at - run.log_sent_at).total_seconds(),
        progress=printed_progress(overview),
        speed=printed_speed(run.measured),
        left_s=overview.left_s,
        loss=printed_loss(overview.seen),
        watchdog=run.watchdog.text if run.watchdog else None,
        watchdog_at=to_the_second(_said_at(run)),
        checkpoint=None if run.checkpoint is None else _printed_checkpoint(run.checkpoint),
        incomplete_checkpoints=list(run.incomplete),
        not_known=list(NOT_KNOWN),
    )


def far_lines(run: FarRun, width: int, colour: bool) -> list[str]:
    """Return the screen, wrapped at `width` characters."""
    overview = _overview(run)
    title = printable(str(run.repo))
    said, clock = f"  as on the hub {_age(run)}", iso(run.at, "minutes")
    gap = width - len(title) - len(said) - len(clock)
    first = paint(title, "1", colour) + said
    rows = [("log", f"{run.log} at {run.repo.revision}" if run.log_commit else f"none yet at {run.log}")]
    if overview.iteration is not None:
        rows += [
            ("progress", progress_text(overview)),
            ("speed", speed_text(overview)),
            ("left", left_text(overview)),
            ("loss", loss_text(overview.seen)),
        ]
    rows += [("checkpoint", _checkpoint(run)), *(("incomplete", one) for one in run.incomplete)]
    if run.watchdog is not None:
        at = _said_at(run)
        rows.append(("watchdog", f"{run.watchdog.text}{f', {_since(at, run.at)} ago' if at else ''}"))
    rows.append(("not known", ", ".join(NOT_KNOWN) + ": only the run's cluster knows these"))
    return [first + (" " * gap + clock if gap >= 2 else ""), *labelled(rows, width)]


def _overview(run: FarRun) -> Overview:
    """Return the overview as far as it is known: without Slurm."""
    last, saved = run.measured.last_iteration, run.checkpoint
    seen = Snapshot(
        now=run.at,
        blind="nothing of the queue is on the hub",
        measured=run.measured,
        log_written_at=run.log_sent_at,
        checkpoint=None if saved is None else _checkpoint_of(saved),
        checkpoint_at=None if saved is None else saved.sent_at,
        is_finished=last is not None and last.total_iterations is not None and last.iteration >= last.total_iterations,
    )
    return Overview(str(run.repo), "", Path(run.log), seen)


def _checkpoint_of(far: FarCheckpoint) -> Checkpoint:
    said = far.manifest
    return Checkpoint(Path(far.where), said.iteration, said.consumed_train_samples, said.consumed_train_tokens)


def _printed_checkpoint(far: FarCheckpoint) -> PrintedFarCheckpoint:
    return PrintedFarCheckpoint(
        iteration=far.manifest.iteration,
        consumed_samples=far.manifest.consumed_train_samples,
        where=far.where,
        with_optimizer=_is_full(far),
        sent_at=to_the_second(far.sent_at),
    )


def _age(run: FarRun) -> str:
    if run.log_commit is None:
        return "now"
    return "at an unknown time" if run.log_sent_at is None else f"{_since(run.log_sent_at, run.at)} ago"


def _checkpoint(run: FarRun) -> str:
    saved = run.checkpoint
    if saved is None:
        return "none that is complete there"
    sent = f", sent {_since(saved.sent_at, run.at)} ago" if saved.sent_at else ""
    kind = "complete" if _is_full(saved) else "without optimizer states"
    return f"iteration {saved.manifest.iteration}, {kind} in {saved.where}{sent}"


def _is_full(saved: FarCheckpoint) -> bool:
    return saved.manifest.layout.get("optimizer") != NO_OPTIMIZER


def _said_at(run: FarRun) -> datetime | None:
    """Return the time of the watchdog's line; None for a time without a zone."""
    at = run.watchdog.at if run.watchdog else None
    return at if at is not None and at.tzinfo is not None else None


def _since(moment: datetime, at: datetime) -> str:
    """Return how long ago, at least zero, since two clocks may differ."""
    return ago(min(moment, at), at)
