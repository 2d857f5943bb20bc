"""The facts about a failure: findings of logs, and reports of ranks, launchers and Slurm. Pure."""

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
#: Characters of a line, at its head and tail, that rules see: a pattern's time may grow with the square of the length.
MATCHED_CHARACTERS = 2048
#: A rule with this weight decides by itself, so it may not match a text that a line only quotes.
SURE = 0.9
#: Leading names of an absolute path that vary by site (the empty one before / too), and last names of a file's path.
_NAMES_OF_A_PLACE, _NAMES_OF_A_FILE = 3, 3
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+')
#: The rule for a cancelled step, by a person or by srun.
STEP_CANCELLED = "slurm-step-cancelled"
#: Rules for lines that report that the remaining processes are being ended.
ENDING_RULES = ("slurm-job-cancelled", STEP_CANCELLED, "slurm-step-ends", "slurm-requeued", "interrupted")
_OWN_MESSAGE_ORDER = -1
#: Messages of opsctl itself: they are no evidence.
OUR_OWN = re.compile(r"(START|END) TIME: |opsctl: (?!cannot start the step)|PULSE|\[?WATCHDOG")
#: A source line in a traceback: four spaces, of which the prefix of a rank may have taken one.
_SOURCE_LINE = re.compile(r"   +(raise\b|return\b|with\b|if\b|for\b|assert\b|[\w.]+\(|[\w.\[\], ]+ = )| +File \"")
#: A host that NCCL, gloo or MPI reports as the peer of a connection.
_PEER = re.compile(
    r"(?i)(?:closed by (?:remote )?peer|from peer|remote peer|connect(?:ion)? (?:to|with)|(?:recv|receive|read) from"
    r"|send(?:ing)? to) \[?(?P<peer>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)\]?[<:]\d+"
)
_WARNING = re.compile(r"^\[?W(?:ARNING|ARN)?(?:\d{4})?[ \]:|]")
_CONTINUES = re.compile(r"\b(?:Ignoring|ignoring it|Retrying|retrying|[Ss]kipping (?:it|this))\b")
_LONGEST_LEVEL = 40
#: The start of a quotation. CUDA's message in NCCL's quotes does not count.
_OPEN_QUOTE = re.compile(r"""(?:^|(?<!(?:Cuda|CUDA) failure)[\s:=(\[])(?:'[^']*|"[^"]*)$""")


@dataclass(frozen=True)
class Finding:
    """A line that matches a rule."""

    rule: Rule
    source: str  # the file's name
    text: str  # the line, printable
    order: int  # position; smaller numbers are earlier in the same file
    node: str = ""
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    at: datetime | None = None
    line: int | None = None
    is_before_progress: bool = False  # the training continued after it
    peer: str = ""  # the node, or its address, to which a rank lost its connection
    is_pointed_at: bool = False  # the line names the rank, whichever rank wrote it
    is_warning: bool = False  # its level, or its text, shows that the program continued
    is_words_of: int | None = None  # the rank whose launcher kept it as that rank's own message

    @property
    def quote(self) -> Quote:
        """The line with its position, as evidence in a report."""
        return Quote(source=self.source, text=self.text[:_LONGEST_QUOTE], line=self.line, at=self.at)


@dataclass(frozen=True)
class SlurmEnd:
    """Slurm's record of the end."""

    state: str = ""  # Slurm's job state; empty if unknown
    failed_nodes: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    bad_nodes: tuple[tuple[str, str], ...] = ()  # (node, Slurm's reason) of the job's nodes that are out of service


@dataclass(frozen=True)
class Facts:
    """The facts that a verdict is based on."""

    findings: tuple[Finding, ...] = ()
    failures: tuple[Failure, ...] = ()
    asked_to_end: frozenset[int] = frozenset()  # ranks with SIGTERM or SIGINT before the rest was ended
    ranks: tuple[RankPlace, ...] = ()
    slurm: SlurmEnd = SlurmEnd()
    nodes: tuple[str, ...] = ()  # all nodes of the job, as far as known
    cancelled: Quote | None = None  # the line that cancelled a step before any of its tasks failed
    failed_tasks: tuple[str, ...] = ()  # nodes whose task failed by itself according to srun, in its order
    ended_on: str = ""  # node whose task or launcher a signal ended before any rank reported an error
    reason: str = ""  # an Ending; empty without an attempt
    stacks: tuple[StackGroup, ...] = ()  # of a hung step
    other_work: tuple[tuple[int, str], ...] = ()  # (rank, line) of work that ran while other ranks waited
    iteration: int | None = None  # the last one logged
    last_lines: tuple[Quote, ...] = ()
    unread: tuple[str, ...] = ()  # files that could not be read, or only in part, each with the reason
    samples: tuple[NodeSample, ...] = ()  # the last sample of each node
    advances_s: Mapping[str, float] = field(default_factory=dict)  # node -> seconds that its clock is ahead


def findings_of_line(
    rules: Rules, line: str, source: str, order: int, reference: datetime, frames: Sequence[str] = ()
) -> Finding | None:
    """Return the finding of the matching rule with the highest weight. frames: the traceback, outermost first."""
    if len(line) > MATCHED_CHARACTERS:
        line = f"{line[: MATCHED_CHARACTERS // 2 - 5]} ... {line[-MATCHED_CHARACTERS // 2 :]}"
    parsed = read_line(line, reference)
    if OUR_OWN.match(parsed.text) or _SOURCE_LINE.match(parsed.text):
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
        parsed = ParsedLine(parsed.text, at=parsed.at)  # the line is about another rank than its writer
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
        is_warning=bool(_WARNING.search(parsed.text[:_LONGEST_LEVEL]) or _CONTINUES.search(parsed.text)),
    )
    return found if rule.placed else replace(found, rank=None, local_rank=None, task=None)


def _is_quoted(rule: Rule, match: re.Match[str], text: str) -> bool:
    """Return True if the match is inside a quotation that the line only shows, such as a data sample."""
    begin = match.start() if rule.pattern else min(at for word in rule.texts if (at := text.find(word)) >= 0)
    return bool(_OPEN_QUOTE.search(text[:begin]))


def _was_doing(file: Pattern, error: str, frames: Sequence[str]) -> bool:
    """Return True if the error was raised in such a file. A lost peer can surface anywhere, so it never counts."""
    if is_lost_peer(error):
        return False
    return any(file.search(_within_its_package(name)) for name in files_of(frames))


def _within_its_package(file: str) -> str:
    """Return the end of a path without the file system and its owner's folder, whose names are arbitrary."""
    begin = _NAMES_OF_A_PLACE if file.startswith("/") else 0
    return "/" + "/".join(file.split("/")[begin:][-_NAMES_OF_A_FILE:] or [file.rpartition("/")[2]])


def files_of(frames: Iterable[str]) -> list[str]:
    """Return the files of a traceback's three innermost frames."""
    return [match["file"] for match in map(_FRAME.match, frames) if match][-3:]


def frames_above(before: Sequence[str], line: str, reference: datetime) -> list[str]:
    """Return the traceback that ends with `line`. before: the lines above it. Skips other prefixes."""
    found: list[str] = []
    own, _ = _prefix(line, reference)
    for above in reversed(before[-400:]):
        writer, text = _prefix(above, reference)
        if writer != own:
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
    """Return (writer, rest of the line). Cached, because errors close to each other share the lines above them."""
    parsed = read_line(line, reference)
    return (parsed.node, parsed.rank, parsed.local_rank, parsed.task), parsed.text


def words_of_failures(rules: Rules, failures: Iterable[tuple[Failure, str]], reference: datetime) -> list[Finding]:
    """Return the findings in messages of failed ranks. failures: each with the whole text of its error file."""
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
    """Convert a time by a node's clock to the file server's clock. advances_s: seconds that each clock is ahead."""
    return None if at is None else at - timedelta(seconds=advances_s.get(node, 0.0))


def is_root(finding: Finding) -> bool:
    """Return True if the line explains the failure, instead of following from it."""
    return finding.rule.role is Role.ROOT
