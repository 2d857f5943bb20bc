"""What is known of a bad end, as values: findings of the logs beside what ranks, launchers and Slurm left. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache

from opsctl.core.output import printable
from opsctl.diagnosis.triage.lines import ParsedLine, number, read_line
from opsctl.diagnosis.triage.patterns import Pattern
from opsctl.diagnosis.triage.rules import Role, Rule, Rules
from opsctl.run.attempts.verdict import Quote, StackGroup
from trainer.formats.attempt.attempt_records import Failure, RankPlace
from trainer.formats.attempt.error_file import is_lost_peer
from trainer.formats.attempt.node_samples import NodeSample

_LONGEST_QUOTE = 400
_LINES_REMEMBERED = 2048
#: How much of a line rules are held against, its head and its tail: patterns may take time that grows with its square.
MATCHED_CHARACTERS = 2048
#: From this weight on a rule means a line by itself, so that nothing else would correct what is only quoted in one.
SURE = 0.9
#: Names in a path: of where people keep programs (with the empty one before the first /), and of a file in its package.
_NAMES_OF_A_PLACE, _NAMES_OF_A_FILE = 3, 3
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+')
#: The rule whose line says that a step is cancelled, by somebody or by srun.
STEP_CANCELLED = "slurm-step-cancelled"
#: Rules whose lines say that somebody ends what is left.
ENDING_RULES = ("slurm-job-cancelled", STEP_CANCELLED, "slurm-step-ends", "slurm-requeued", "interrupted")
_OWN_MESSAGE_ORDER = -1
#: What opsctl itself says of an end that it has seen: no witness of its own.
_OUR_OWN = re.compile(r"(START|END) TIME: |opsctl: (?!cannot start the step)|PULSE|\[?WATCHDOG")
#: A line of a program that a traceback shows.
_SOURCE_LINE = re.compile(r"    +(raise\b|return\b|with\b|if\b|for\b|assert\b|[\w.]+\(|[\w.\[\], ]+ = )|  File \"")
#: A host that NCCL, gloo or MPI reports as the other end of a connection.
_PEER = re.compile(
    r"(?i)(?:closed by (?:remote )?peer|from peer|remote peer|connect(?:ion)? (?:to|with)|(?:recv|receive|read) from"
    r"|send(?:ing)? to) \[?(?P<peer>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)\]?[<:]\d+"
)
_WARNING = re.compile(r"^\[?W(?:ARNING|ARN)?(?:\d{4})?[ \]:|]")
_GOES_ON = re.compile(r"\b(?:Ignoring|ignoring it|Retrying|retrying|[Ss]kipping (?:it|this))\b")
_LONGEST_LEVEL = 40
#: NCCL quotes CUDA's own words.
_OPEN_QUOTE = re.compile(r"""(?:^|(?<!(?:Cuda|CUDA) failure)[\s:=(\[])(?:'[^']*|"[^"]*)$""")


@dataclass(frozen=True)
class Finding:
    """A line that a rule means."""

    rule: Rule
    source: str  # the file's name
    text: str  # the line, printable
    order: int  # where it stands: of two in one file the lesser comes first
    node: str = ""
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    at: datetime | None = None
    line: int | None = None
    is_before_progress: bool = False  # the training went on after it
    peer: str = ""  # the node, or its address, that a rank lost or did not reach
    is_pointed_at: bool = False  # the line names the rank: whoever says it says it of that one
    is_warning: bool = False  # its logger, or itself, says that it goes on after it
    is_words_of: int | None = None  # the rank whose launcher kept it as that rank's own words

    @property
    def quote(self) -> Quote:
        """It, to be shown."""
        return Quote(source=self.source, text=self.text[:_LONGEST_QUOTE], line=self.line, at=self.at)


@dataclass(frozen=True)
class SlurmEnd:
    """What Slurm says of the end."""

    state: str = ""  # its own word; empty where it has none, or cannot be asked
    failed_nodes: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    bad_nodes: tuple[tuple[str, str], ...] = ()  # nodes of the job that are out of service, each with Slurm's reason


@dataclass(frozen=True)
class Facts:
    """All that a verdict is made of."""

    findings: tuple[Finding, ...] = ()
    failures: tuple[Failure, ...] = ()
    told_to_end: frozenset[int] = frozenset()  # ranks that got SIGTERM or SIGINT before anybody ended what was left
    ranks: tuple[RankPlace, ...] = ()
    slurm: SlurmEnd = SlurmEnd()
    nodes: tuple[str, ...] = ()  # all nodes of it, as far as known
    cancelled: Quote | None = None  # the line by which a step was cancelled before any of it failed
    failed_tasks: tuple[str, ...] = ()  # nodes on which a task failed by itself, as srun says, in its order
    ended_on: str = ""  # where a task or a launcher was ended by a signal before any rank said why
    reason: str = ""  # an Ending, where there is an attempt
    stacks: tuple[StackGroup, ...] = ()  # of a hung step
    other_work: tuple[tuple[int, str], ...] = ()  # rank and line of what went on as others waited in vain
    iteration: int | None = None  # the last one logged
    last_lines: tuple[Quote, ...] = ()
    unread: tuple[str, ...] = ()  # what could not be read, or not to its end, each in a few words
    samples: tuple[NodeSample, ...] = ()  # of each node the last one that was taken
    advances_s: Mapping[str, float] = field(default_factory=dict)  # node -> seconds that its clock is ahead


def findings_of_line(
    rules: Rules, line: str, source: str, order: int, reference: datetime, frames: Sequence[str] = ()
) -> Finding | None:
    """Return what the surest matching rule says of the line. frames: its traceback, outermost first."""
    if len(line) > MATCHED_CHARACTERS:
        line = f"{line[: MATCHED_CHARACTERS // 2 - 5]} ... {line[-MATCHED_CHARACTERS // 2 :]}"
    parsed = read_line(line, reference)
    if _OUR_OWN.match(parsed.text) or _SOURCE_LINE.match(parsed.text):
        return None
    best: tuple[float, Rule, re.Match[str]] | None = None
    for rule in rules.rows:
        if best is not None and (rule.otherwise or rule.weight <= best[0]) and not best[1].otherwise:
            continue
        if not any(word in line for word in rule.texts):
            continue
        match = rule.matches(parsed.text)
        if match is None or (rule.weight >= SURE and _is_quoted(rule, match, parsed.text)):
            continue
        if rule.file is not None and not _was_doing(rule.file, parsed.text, frames):
            continue
        best = rule.weight, rule, match
    if best is None:
        return None
    _, rule, match = best
    named = {re.sub(r"_\d$", "", key): value for key, value in match.groupdict().items() if value}
    mentioned = number(named.get("rank"))
    peer = _PEER.search(parsed.text)
    own_rank = parsed.rank
    if "rank" in named and mentioned != parsed.rank:
        parsed = ParsedLine(parsed.text, at=parsed.at)  # it tells of another than who says it
    found = Finding(
        rule=rule,
        source=source,
        text=printable(line.strip()),
        order=order,
        node=named.get("node") or (parsed.node if rule.placed else ""),
        rank=parsed.rank if mentioned is None else mentioned,
        local_rank=parsed.local_rank,
        task=number(named.get("task", "")) if "task" in named else parsed.task,
        at=parsed.at,
        peer=peer["peer"] if peer and rule.role is not Role.TEARDOWN else "",
        is_pointed_at=mentioned is not None and mentioned != own_rank,
        is_warning=bool(_WARNING.search(parsed.text[:_LONGEST_LEVEL]) or _GOES_ON.search(parsed.text)),
    )
    return found if rule.placed else replace(found, rank=None, local_rank=None, task=None)


def _is_quoted(rule: Rule, match: re.Match[str], text: str) -> bool:
    """Whether it stands in a text that the line only shows, a sample of the data."""
    begin = match.start() if rule.pattern else min(at for word in rule.texts if (at := text.find(word)) >= 0)
    return bool(_OPEN_QUOTE.search(text[:begin]))


def _was_doing(file: Pattern, error: str, frames: Sequence[str]) -> bool:
    """Whether an error of its own was raised in such a file. A peer is lost wherever a rank waits for one."""
    if is_lost_peer(error):
        return False
    return any(file.search(_within_its_package(name)) for name in files_of(frames))


def _within_its_package(file: str) -> str:
    """The end of its path, without the file system and the folder of whose it is: they are named as people like."""
    begin = _NAMES_OF_A_PLACE if file.startswith("/") else 0
    return "/" + "/".join(file.split("/")[begin:][-_NAMES_OF_A_FILE:] or [file.rpartition("/")[2]])


def files_of(frames: Iterable[str]) -> list[str]:
    """The files of a traceback's lines; the innermost few, which say what was being done."""
    return [match["file"] for match in map(_FRAME.match, frames) if match][-3:]


def frames_above(before: Sequence[str], line: str, reference: datetime) -> list[str]:
    """The traceback that ends with `line`, after `before`: lines of others, told by what stands in front, are out."""
    found: list[str] = []
    own, _ = _prefix(line, reference)
    for above in reversed(before[-400:]):
        whose, text = _prefix(above, reference)
        if whose != own:
            continue
        if text.startswith("Traceback (most recent call last)"):
            break
        if text.startswith(" ") or not text.strip():
            found.append(text)
        elif found:
            break
    return found[::-1]


@lru_cache(maxsize=_LINES_REMEMBERED)
def _prefix(line: str, reference: datetime) -> tuple[tuple[str, int | None, int | None, int | None], str]:
    """(who said it, the rest of the line): errors that stand near each other are looked at above by the same lines."""
    parsed = read_line(line, reference)
    return (parsed.node, parsed.rank, parsed.local_rank, parsed.task), parsed.text


def words_of_failures(rules: Rules, failures: Iterable[tuple[Failure, str]], reference: datetime) -> list[Finding]:
    """Findings of what failed ranks said themselves: each failure with the whole of its error file."""
    found = []
    for failure, words in failures:
        lines = [line for line in (words or failure.message).splitlines() if line.strip()]
        frames = [line for line in lines if line.startswith("  ")]
        for line in [*lines[:1], *[one for one in lines[1:] if not one.startswith((" ", "Traceback"))][-3:]]:
            one = findings_of_line(rules, line, f"rank {failure.rank}", _OWN_MESSAGE_ORDER, reference, frames)
            if one is not None:
                at = failure.failed_at or one.at
                placed = replace(one, node=failure.node, rank=failure.rank, at=at, is_words_of=failure.rank)
                found.append(placed)
    return found


def by_one_clock(at: datetime | None, node: str, advances_s: Mapping[str, float]) -> datetime | None:
    """`at`, said by `node`, as the file server's clock would have had it."""
    return None if at is None else at - timedelta(seconds=advances_s.get(node, 0.0))


def is_root(finding: Finding) -> bool:
    """Whether its line says why, and not what came of it."""
    return finding.rule.role is Role.ROOT
