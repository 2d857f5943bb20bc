"""What render, submit, revise and cancel print for programs with `--json`, as values."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from opsctl.run.state.chains import Chain


class RepointedCheckpoints(Struct, frozen=True, kw_only=True):
    """Which checkpoint is the latest now."""

    before: Annotated[int | None, Meta(description="Iteration of the latest before; null where nobody could tell.")] = (
        field(name="from")
    )
    to: Annotated[int, Meta(description="Iteration of the one that the next task goes on from.")]
    changed: Annotated[bool, Meta(description="Whether that is another one.")]
    dry_run: Annotated[bool, Meta(description="Whether it would only be so.")]


class PrunedRun(Struct, frozen=True, kw_only=True):
    """What a prune removed of one run, or with `--dry-run` would."""

    run: Annotated[str, Meta(description="The run's name.")]
    dry_run: Annotated[bool, Meta(description="Whether it would only be so.")]
    kept: Annotated[dict[str, list[str]], Meta(description="Iteration, as text, to every reason why it stays.")]
    pruned: Annotated[list[int], Meta(description="Iterations of what is gone.")]
    problems: Annotated[list[str], Meta(description="What could not be done, and why; then the command exits 1.")]


class RolledBackRun(Struct, frozen=True, kw_only=True):
    """What a rollback set aside, or its undoing brought back; with `--dry-run` what it would."""

    number: Annotated[int | None, Meta(description="The rollback's number; null where nothing was to do.")]
    before: Annotated[int | None, Meta(description="Iteration of the latest before; null where nobody could tell.")] = (
        field(name="from")
    )
    to: Annotated[int, Meta(description="Iteration of the one that the next task goes on from.")]
    checkpoints: Annotated[list[int], Meta(description="Iterations that were moved.")]
    events: Annotated[list[str], Meta(description="TensorBoard's files that were moved, by name.")]
    folder: Annotated[str | None, Meta(description="Where what is set aside lies.")]
    dry_run: Annotated[bool, Meta(description="Whether it would only be so.")]


class RenderedFiles(Struct, frozen=True, kw_only=True):
    """What a submit would hand to Slurm and publish: file name to text."""

    batch: Annotated[str, Meta(description="The batch script; ids that only a submit makes are said in words.")] = (
        field(name="batch.sh")
    )
    run: Annotated[str, Meta(description="The run file, every value expanded, as JSON.")] = field(name="run.json")
    trainer_arguments: Annotated[str, Meta(description="The trainer's arguments, as a JSON list.")] = field(
        name="trainer-arguments.json"
    )
    engine: Annotated[str, Meta(description="The engine's configuration, as JSON.")] = field(name="engine.json")
    step: Annotated[str, Meta(description="The script that runs once per node.")] = field(name="step.sh")


class WouldSubmit(Struct, frozen=True, kw_only=True):
    """What a submit would do."""

    script: Annotated[str, Meta(description="The batch script that Slurm would get.")]
    warnings: Annotated[list[str], Meta(description="What is not known, or may be wrong.")]


class PrintedChain(Chain, frozen=True, kw_only=True):
    """A chain that was submitted."""

    run: Annotated[str, Meta(description="The run's name.")]
    warnings: Annotated[list[str], Meta(description="What is not known, or may be wrong.")]
    further: Annotated[
        list[int],
        Meta(description="Chains behind it, where one array would have had more tasks than this Slurm takes."),
    ]


class ChangedValue(Struct, frozen=True, kw_only=True):
    """A value of the run file, before and after; null where it was not, or is no longer, set."""

    before: Annotated[Any, Meta(description="The published value.")] = field(name="from")
    after: Annotated[Any, Meta(description="The run file's value.")] = field(name="to")


class RevisedRun(Struct, frozen=True, kw_only=True):
    """What a revise did, or would do."""

    revision: Annotated[str | None, Meta(description="Name of the newest revision; null in a dry run.")]
    changed: Annotated[
        dict[str, ChangedValue],
        Meta(description="What changed, by `table.key`; `layout`: the last checkpoint's and the one that loads it."),
    ]
    replaced: Annotated[
        dict[str, int | None],
        Meta(description="The new chain's job id by the old one's; null in a dry run."),
    ]
    dry_run: Annotated[bool, Meta(description="Whether nothing was changed.")]


class CancelledJobs(Struct, frozen=True, kw_only=True):
    """What a cancel did, or would do."""

    ids: Annotated[list[str], Meta(description="The jobs that were cancelled, as squeue shows their ids.")]
    left: Annotated[list[str], Meta(description="The run's jobs that are left to their owners.")]
    unseen: Annotated[list[str], Meta(description="Others' chains that may be queued, where Slurm hides others' jobs.")]
    dry_run: Annotated[bool, Meta(description="Whether nothing was changed.")]


class RefilledRun(Struct, frozen=True, kw_only=True):
    """What a refill did for one run, or why nothing."""

    run: Annotated[str, Meta(description="The run's name.")]
    output: Annotated[str, Meta(description="Absolute path of its output folder; empty where that is not known.")]
    state: Annotated[
        str,
        Meta(
            description="One of: `enough` is queued; `submitted` what was missing; `missing`, in a dry run; it "
            "`rests`, for somebody stopped it or it is finished; it is `stuck` until somebody looks."
        ),
    ]
    text: Annotated[str, Meta(description="The same in a line for people.")]
    submitted: Annotated[list[int], Meta(description="Job ids of the new arrays.")]
    missing: Annotated[int, Meta(description="How many arrays were missing.")]
    needs_somebody: Annotated[bool, Meta(description="Whether a person has to look.")]
