"""The type of a kind of training program, and what its functions take and return."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Progress:
    """The progress that a line of a program's output reports. None: the line does not report it.

    Values without an iteration are of the next iteration that the program reports.
    """

    iteration: int | None = None  # optimizer steps done
    total_iterations: int | None = None
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    seconds_per_iteration: float | None = None


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint on disk: one folder or one file."""

    iteration: int
    path: Path
    problem: str | None = None  # why the program would not load it; None: complete


@dataclass(frozen=True)
class CommandLine:
    """The reading of a program's own words, for `opsctl init --from-script`.

    is_its: the program and its arguments -> True if they are certainly of this kind.
    imports: modules that only programs of this kind import.
    output: the option whose value is a folder, with `saves`, the pattern of checkpoints in it.
    has_default: without that option it saves in a folder that the kind's own pattern finds.
    steps: the option whose value is the length of the training in steps.
    left_out: options, without values or with one, that opsctl gives itself or that work against it.
    """

    is_its: Callable[[Sequence[str]], bool]
    imports: tuple[str, ...] = ()
    output: str = ""
    saves: str = ""
    has_default: bool = False
    steps: str = ""
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """A kind of training program.

    saves_on: the signal to all ranks on which the program saves and leaves; None: it saves on no request.
    environment: variables that it needs for its log, for a run whose [env] does not set them.
    saves_with: the option in its command with which it does so, with its value; None: it needs none.
    checkpoints: a pattern of paths relative to the run's folder, for a run file without one.
    progress: the progress in one line of output, None for other lines.
    judge: a path that the pattern matches -> the checkpoint, None for a path that is none.
    follow: the step that an attempt starts from and the batches of a step -> its `progress`, for a kind whose lines
        need those before them.
    resume: the newest complete checkpoint -> arguments that resume from it. Empty for a program that finds it itself.
    takes_torn: the program loads its newest checkpoint without checking it, so a torn one has to be moved away.
    lacks: sentences about what the program cannot do, for `plan`, `doctor` and `status`.
    command_line: how its words are read; None for a kind that no words show.
    """

    name: str
    launch: str  # the default of [program] launch: one of `[program] launch`
    saves_on: str | None
    checkpoints: str | None
    progress: Callable[[str], Progress | None]
    judge: Callable[[Path], SavedCheckpoint | None]
    resume: Callable[[Path], Sequence[str]]
    takes_torn: bool = False
    follow: Callable[[int, int], Callable[[str], Progress | None]] | None = None
    lacks: tuple[str, ...] = ()
    saves_with: str | None = None
    command_line: CommandLine | None = None
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)


def numbered_folder(name: str, problem: Callable[[Path, int], str | None]) -> Callable[[Path], SavedCheckpoint | None]:
    """Return a `judge` of folders whose whole name `name` matches, with the iteration as its group.

    problem: the folder and the iteration -> why the program would not load it, None for a complete one.
    """
    pattern = re.compile(name)

    def judge(path: Path) -> SavedCheckpoint | None:
        match = pattern.fullmatch(path.name)
        if match is None or not path.is_dir():
            return None
        return SavedCheckpoint(int(match[1]), path, problem(path, int(match[1])))

    return judge


def options_in(words: Sequence[str]) -> dict[str, str]:
    """Return the options among a program's words, with `_` for `-` and no dashes before them: name -> value.

    An option has the form `--name value`, `--name=value` or `name=value`; one without a value has "".
    """
    found: dict[str, str] = {}
    for word, following in pairwise((*words, "-")):
        name, equals, value = word.partition("=")
        if word.startswith("--") or (equals and re.fullmatch(r"[+~]*[\w.@/-]+", name)):
            alone = "" if following.startswith("-") and not re.match(r"-\.?\d", following) else following
            found[name.lstrip("-+~").replace("-", "_")] = value if equals else alone
    return found


def no_progress(_: str) -> None:
    """Return None: `run.logs` parses the program's own lines."""


def by_itself(_: Path) -> Sequence[str]:
    """Return no arguments: the program finds its newest checkpoint."""
    return ()


def found(paths: Iterable[Path], judge: Callable[[Path], SavedCheckpoint | None]) -> list[SavedCheckpoint]:
    """Return the checkpoints among `paths`, the newest first: by iteration, then by the time of the last change."""
    saved = [one for one in map(judge, paths) if one is not None]
    return sorted(saved, key=lambda one: (one.iteration, _changed_ns(one.path)), reverse=True)


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # removed meanwhile
        return 0
