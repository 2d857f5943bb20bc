"""Parse the prefix of a log line, as launchers and daemons write it: node, rank and time. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

#: A node's name needs a digit, because `torch:` and `ERROR:` also precede lines.
_NODE = r"(?=[A-Za-z0-9.-]*\d)[A-Za-z][A-Za-z0-9.-]*[A-Za-z0-9]"
#: Any name, for forms without ambiguity.
_HOST = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_SYSLOG_TIME = r"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S* )"
SYSLOG_ENDS = r"(?=(?:kernel|systemd|slurmd|slurmctld|nvidia-[a-z]+|NVRM|dmesg)\b|\[ *\d+\.\d{2,6}\] )"
_FILE_ENDS = r"(?!\S*\.(?:py|cpp|cc|cu|cuh|c|h|sh|so|log|txt|json|yaml)\b)"
_NOT_TIME = r"(?!\d{4}-)"
_ADDRESS = r"\d{1,3}(?:\.\d{1,3}){3}"
#: A time as most programs print it.
STAMP = r"\d{4}-\d\d-\d\d[ T,_]\d\d:\d\d:\d\d[.,\dZ+]*"
_LEVEL = r"(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\b"
#: Prefixes, removed repeatedly from the front of a line. Groups: node, rank, local_rank, task.
_PREFIXES = tuple(
    re.compile(text)
    for text in (
        rf"@(?P<node>{_HOST}): ",
        r"\s*\[(?:default|trainer|worker)_?(?P<local_rank>\d+)\]:\s?",
        r"\s*\[?[Rr]ank ?(?P<rank>\d+)(?:/\d+)?\]?:\s?",
        r"\s*\[(?i:(?:global[ _])?rank)[ :=]{0,2}(?P<rank>\d+)(?:/\d+)?\]:?\s?",
        rf"\[pod/(?P<node>{_NODE})(?:/[\w.-]+)?\]:?\s",
        r"(?:(?:[A-Z][a-z]{2} ){2}[ \d]\d \d\d:\d\d:\d\d \d{4})?"
        rf"\[(?:[\w.-]+@)?\d+,(?:mpirank:)?(?P<rank>\d+)(?:,(?P<node>{_HOST}))?\]<std(?:err|out|diag)>:\s?",
        rf"(?P<rank>\d{{1,5}})@(?P<node>{_NODE}) ?[|:] ?",
        r"\[(?P<rank>\d{1,5})/\d{1,5}\] (?=Traceback |  File |    |[\w.]+(?:Error|Exception)\b)",
        rf"\[?{STAMP}\]?[ |-]{{1,4}}\[?(?P<node>(?=[A-Za-z-]*\d)[A-Za-z][A-Za-z0-9-]*)\]?[ |-]{{1,4}}(?=\[?{_LEVEL})",
        r"\[?(?:ERROR|CRITICAL|FATAL)\]?[ |:-]{1,3}(?=\S|  File )",
        rf"(?P<node>{_NODE}) (?=\[[Rr]ank ?\d+\])",
        rf"(?P<node>{_ADDRESS}): (?=\S|  )",
        rf"(?P<node>{_HOST}):\d+:\d+ \[(?P<local_rank>\d+)\]\s",
        rf"(?P<node>{_HOST}):\d+:\d+ (?=NCCL )",
        rf"(?P<node>{_NODE}):\d+:\d+(?= )\s",
        rf"\[(?P<node>{_NODE}):(?P<rank>\d{{1,2}})\]:?\s",
        rf"\[(?P<node>{_NODE}):\d+\]\s",
        rf"\[(?P<node>{_NODE})\] (?=\[[Rr]ank ?\d+\]|Traceback |  File |[\w.]+(?:Error|Exception)\b)",
        rf"srun: error: (?P<node>{_HOST}): tasks? (?P<task>\d+)[^:]*:\s",
        rf"slurmstepd-(?P<node>{_HOST}): ",
        rf"(?P<node>{_NODE}) \[(?P<local_rank>\d+)\] (?=NCCL |\S+\.(?:cc|h):\d+ NCCL )",
        rf"\[?[Rr]ank[ :=]?(?P<rank>\d+) ?[|,;/@ ] ?(?:host[ :=]|node[ :=])?(?P<node>{_NODE})\]:?\s",
        rf"\[(?:host[ :=]|node[ :=])?(?P<node>{_NODE}) ?[|,;/ ] ?[Rr]ank[ :=]?(?P<rank>\d+)\]:?\s",
        rf"\[(?P<node>{_NODE})\] (?=\S*bash: |\S+\.sh: line \d|/\S+: line \d|[\w.]+:(?: |$))",
        rf"(?:{_LEVEL} *\| *)?[\w.]+:[\w<>]+:\d+ - (?=\S)",
        rf"\[?{STAMP}\]? ?\|? ?(?:ERROR|CRITICAL|FATAL) *\| *",
        rf"{_SYSLOG_TIME}?\[?(?P<syslog>{_NODE})\]? {SYSLOG_ENDS}",
        rf"{_SYSLOG_TIME}(?P<syslog>{_HOST}) {SYSLOG_ENDS}",
        rf"{_FILE_ENDS}{_NOT_TIME}(?P<node>{_NODE}): ",
        r" {0,5}(?P<task>\d{1,6}): ?(?![\d:])",
        r"\[(?P<task>\d{1,5})\] (?=[EWIF]\d{4} |[\w.]+(?:Error|Exception|Check)\b|Traceback |  File |\S+:\d+:\d+ )",
        rf"\[[A-Za-z][\w.-]{{0,30}}\]:?\s(?={_NODE}: )",
        r"\([\w.-]+, rank=(?P<rank>\d+)(?:, \w+=\w+)*\)\s",
        r"\((?:\w+ pid=\d+|raylet)(?:, ip=(?P<node>[\d.]+))?\)\s?",
        rf"\[?{STAMP}\]?:?\s(?!\|)",
    )
)
_WITHIN = (
    re.compile(r"\b[Rr]ank[ :=]+\[?(?P<rank>\d+)\b(?! and)"),
    re.compile(r"\(global: (?P<rank>\d+), local:? (?P<local_rank>\d+)\)"),
    re.compile(rf"\b(?:host(?:name)?|node)[=: ]+(?P<node>{_NODE})\b"),
    re.compile(rf"\b(?:ip|IP)(?:=|: ?)(?P<node>{_ADDRESS})\b"),
)
_MOST_PREFIXES = 7
#: A field that loggers and collectors add before the text: a time, a level, a name with a number, a pair, brackets.
_FIELD = re.compile(
    r"(?:\[(?![^\]]*\b(?:W|WARN\w*|I|INFO|DEBUG)\b)[^\]]{1,80}\]"
    r"|\([^()]{1,60}\)|<[^<>]{1,40}>|(?:msg|message|text)=\""
    r"|[A-Za-z_.]{1,30}=[^\s\"]{1,80}|(?:ERROR|CRITICAL|FATAL|root|__main__|trainer|worker)\b"
    r"|std(?:err|out) [FP]\b|[EF]\d{4}\b"
    r"|\w+\.py:\d+\]?|\d[\d:.,TZ/+-]{0,40}(?=[ \]:|])|[|:-](?= )|\||(?!WARN|INFO|DEBUG)[\w.-]{1,40}\|"
    r"|(?=[A-Za-z-]*\d)[A-Za-z][\w-]{0,62}(?::\d+)?(?=[ :>|])[:>]?) ?"
)
_MOST_FIELDS = 10
#: Text that only the program itself prints: parts of a traceback, or the name of an error.
_OWN_WORDS = re.compile(
    r"(?:[a-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception)(?::|$)|Traceback \(most recent|  File \"|    (?=\S)"
)
_RANK_IN_FRONT = re.compile(r"(?i)\brank[ :=_]{0,2}(?P<rank>\d{1,8})\b")
_NAMES = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"
_MONTHS = {name: at for at, name in enumerate(_NAMES.split(), start=1)}
_FULL = re.compile(
    r"(?P<year>20\d\d)[-/](?P<month>\d\d)[-/](?P<day>\d\d)[ T_](?P<clock>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?"
    r" ?(?P<zone>Z\b|[+-]\d\d:?\d\d\b)?"
)
_GLOG = re.compile(r"\[?[IWEF](?P<month>\d{1,2})(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)(?P<part>\.\d+)?")
_SYSLOG = re.compile(
    r"(?:[A-Z][a-z]{2} )?(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<day>\d{1,2}) "
    r"(?P<clock>\d\d:\d\d:\d\d)(?: (?:[A-Z]{3,4} )?(?P<year>20\d\d))?"
)
_LATEST_PLACE = 400  # characters of a line that may contain its time


@dataclass(frozen=True)
class ParsedLine:
    """A line without its prefix, and the fields of the prefix."""

    text: str
    node: str = ""
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None  # srun's task: the rank only if each rank has its own task
    at: datetime | None = None  # with zone
    is_kernels: bool = False  # written by a node's kernel or daemon


def read_line(line: str, reference: datetime) -> ParsedLine:
    """Split `line` into prefix and text. reference: a time close to the log's, for stamps without a year or zone."""
    found: dict[str, str] = {}
    rest = line
    at = _moment(line[:_LATEST_PLACE], reference)
    for _ in range(_MOST_PREFIXES):
        match = next((match for prefix in _PREFIXES if (match := prefix.match(rest)) and match.end()), None)
        if match is None:
            break
        found.update({key: value for key, value in match.groupdict().items() if value and key not in found})
        rest = rest[match.end() :]
    whole, fields = rest, _end_of_fields(rest)
    if fields and _OWN_WORDS.match(rest, fields):
        if rank := _RANK_IN_FRONT.search(rest, 0, fields):
            found.setdefault("rank", rank["rank"])
        rest = rest[fields:]
    if "syslog" in found:
        found = {"node": found["syslog"], "syslog": found["syslog"]}
    for pattern in _WITHIN:
        if match := pattern.search(whole):
            found.update({key: value for key, value in match.groupdict().items() if key not in found})
    return ParsedLine(
        text=rest,
        node=found.get("node", ""),
        rank=number(found.get("rank")),
        local_rank=number(found.get("local_rank")),
        task=number(found.get("task")),
        at=at,
        is_kernels="syslog" in found,
    )


def _end_of_fields(text: str) -> int:
    """Return the position after the fields that precede a program's own text."""
    at = 0
    for _ in range(_MOST_FIELDS):
        match = _FIELD.match(text, at)
        if match is None or (at and _OWN_WORDS.match(text, at)):
            break
        at = match.end()
    return at


def number(text: str | None) -> int | None:
    """Return a rank's or a task's number; None if `text` is not such a number."""
    return int(text) if text is not None and len(text) < 9 and text.isdecimal() else None


def _moment(text: str, reference: datetime) -> datetime | None:
    match = _FULL.search(text)
    try:
        if match:
            zone = _zone(match["zone"])
            return _at(int(match["year"]), int(match["month"]), int(match["day"]), match["clock"], match["part"], zone)
        match = _GLOG.search(text)
        if match:
            return _nearest(int(match["month"]), int(match["day"]), match["clock"], match["part"], reference)
        match = _SYSLOG.search(text)
        if match:
            month, day = _MONTHS[match["name"]], int(match["day"])
            if match["year"]:
                return _at(int(match["year"]), month, day, match["clock"], None, None)
            return _nearest(month, day, match["clock"], None, reference)
    except (ValueError, OverflowError):
        pass  # an impossible date
    return None


def _zone(text: str | None) -> timezone | None:
    if not text:
        return None
    if text == "Z":
        return UTC
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return timezone(timedelta(minutes=-minutes if text[0] == "-" else minutes))


def _at(year: int, month: int, day: int, clock: str, part: str | None, zone: timezone | None) -> datetime:
    hour, minute, second = map(int, clock.split(":"))
    microsecond = int((part[1:] + "000000")[:6]) if part else 0
    parsed = datetime(year, month, day, hour, minute, second, microsecond, tzinfo=zone)
    return parsed if zone else parsed.astimezone()  # a stamp without a zone is the site's local time


def _nearest(month: int, day: int, clock: str, part: str | None, reference: datetime) -> datetime:
    """Return the time in the year closest to the reference: such stamps have no year."""
    found = []
    for year in (reference.year - 1, reference.year, reference.year + 1):
        try:
            found.append(_at(year, month, day, clock, part, None))
        except ValueError:
            continue  # 29 February
    if not found:
        raise ValueError("no such day")
    return min(found, key=lambda one: abs((one - reference).total_seconds()))
