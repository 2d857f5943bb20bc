"""The rules for values of a run file's and a profile's tables, beyond their types, in one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.core.errors import RunFileError
from opsctl.run.config.expansion import VARIABLE_NAME
from opsctl.run.config.file_kinds import KINDS, KINDS_OF_FILES
from opsctl.run.config.schema import (
    COMMAND,
    EXISTING,
    HUB_CHECKPOINTS,
    KINDS_OF_PROGRAMS,
    LAUNCHES,
    PROBES,
    PROGRESS_GROUPS,
    PUBLISHERS,
    STOPS,
    SlurmTable,
)
from opsctl.run.config.secret_references import HOOK, form_problem, is_reference, kind_of, written_problem
from opsctl.run.config.toml_types import shown, shown_key
from opsctl.slurm.arrays import array_problem
from opsctl.slurm.cluster import BACKENDS
from opsctl.slurm.durations import DURATION_RULE, parse_duration_s
from trainer.formats.byte_sizes import size_in_bytes

Tables = Mapping[str, Mapping[str, Any] | None]

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
RUN_NAME_RULE = "letters, digits, '.', '_' and '-', starting with a letter or digit, at most 128"
_EXTRA = re.compile(r"--(?P<name>[a-z][a-z0-9-]*)(=(?P<value>[^\s'\"\\#]+))?")
#: sbatch options that opsctl writes itself or that would take the job out of its hands.
OWN_SBATCH_OPTIONS = frozenset(
    (
        *("account", "array", "begin", "chdir", "clusters", "comment", "constraint", "cpus-per-task", "dependency"),
        *("error", "exclude", "export", "gpus", "gpus-per-node", "gpus-per-task", "gres", "help", "input", "job-name"),
        *("kill-on-invalid-dep", "nice", "no-requeue", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output"),
        *("parsable", "partition", "qos", "requeue", "reservation", "signal", "test-only", "time", "time-min", "usage"),
        *("version", "wait", "wrap"),
    )
)
#: sbatch options whose names begin like one of ours and are not an abbreviation of it.
_OTHER_SBATCH_OPTIONS = frozenset({"mem", "hint", "exclusive", "hold", "wait-all-nodes"})
#: Names whose values must not be in a file that a group shares.
_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_KEY)(_|$)", re.IGNORECASE)
#: What Python makes of a byte of a file's name that is no UTF-8: neither sbatch nor JSON can be handed one.
_HALF_PAIRS = ("\ud800", "\udfff")
_LAUNCHER_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
_LONGEST_S = 10 * 365 * 86400
_REPO = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
#: Keys of [watch] that only a profile may have: they name what is run.
_OF_A_PROFILE = ("quota_command", "quota_pattern")


@dataclass(frozen=True)
class _Rule:
    holds: Callable[[Any], bool]  # of a value, or of each one of a list
    allowed: str
    is_shown: bool = True  # False: the value may be, or have in it, a secret


def _between(least: float, most: float) -> _Rule:
    return _Rule(lambda value: least <= value <= most, f"a number from {least} to {most}")  # false for nan


def _from(least: int) -> _Rule:
    return _Rule(lambda value: value >= least, f"a whole number from {least} on")


def _one_of(names: Sequence[str]) -> _Rule:
    return _Rule(lambda value: value in names, f"one of {', '.join(map(shown, names))}")


def _like(pattern: str | re.Pattern[str], allowed: str, is_shown: bool = True) -> _Rule:
    match = re.compile(pattern).fullmatch
    return _Rule(lambda value: match(value) is not None, allowed, is_shown)


def _lasts(least_s: int, most_s: int = _LONGEST_S) -> Callable[[str], bool]:
    def holds(value: str) -> bool:
        try:
            return least_s <= parse_duration_s(value) <= most_s
        except ValueError:
            return False

    return holds


_DURATION = _Rule(_lasts(1), f"{DURATION_RULE}, up to ten years")
_TEXT = _Rule(lambda value: bool(value.strip()) and value.isprintable(), "text on one line, not empty")
_ARGUMENT = _Rule(
    lambda value: _TEXT.holds(value) and not value.startswith("-"),
    "text on one line, not empty, not starting with -",
)
#: A `#SBATCH` line cuts at blanks and comments and takes quotes for itself, so these values have none.
_WORD = _Rule(
    lambda value: re.fullmatch(r"[^\s'\"\\#-][^\s'\"\\#]*", value) is not None and value.isprintable(),
    "one word without blanks, quotes or #, not starting with -",
)
_PATH = _like(r"[^\x00-\x1f\x7f]*[^\x00-\x20\x7f]", "a path on one line")
_ITERATION = _Rule(lambda value: value >= 1, "an iteration from 1 on")
_MODULE = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"

#: (table, its keys, what each of their values has to be).
_RULES = (
    ("run", "name", _like(RUN_NAME, RUN_NAME_RULE)),
    ("run", "output environment group team", _TEXT),
    ("run", "publish", _one_of(PUBLISHERS)),
    ("slurm", "nodes", _between(1, 100_000)),
    ("slurm", "min_nodes", _between(0, 100_000)),
    ("slurm", "gpus_per_node", _between(1, 64)),
    ("slurm", "cpus_per_task", _between(1, 4_096)),
    ("slurm", "spare restarts", _between(0, 1_000)),
    ("slurm", "nice", _between(-(2**31) + 4, 2**31 - 4)),
    ("slurm", "probe", _one_of(PROBES)),
    ("slurm", "partition account qos constraint reservation gpu_type exclude", _WORD),
    ("slurm", "time", _Rule(_lasts(60), f"one minute to ten years, as {DURATION_RULE}")),
    ("slurm", "exit_margin", _DURATION),
    ("program", "command", _Rule(lambda value: value.isprintable(), "words on one line")),
    ("program", "kind", _one_of(KINDS_OF_PROGRAMS)),
    ("program", "launch", _one_of(LAUNCHES)),
    ("program", "stop", _one_of(STOPS)),
    ("program", "existing", _one_of(EXISTING)),
    ("program", "grace", _DURATION),
    ("program", "folder checkpoints complete", _PATH),
    ("program", "steps global_batch_size batches_per_step", _from(1)),
    ("array", "keep_queued", _between(0, 100)),
    ("retention", "last", _from(2)),
    ("retention", "every until_backed_up", _from(0)),
    ("retention", "full_percent", _between(0, 100)),
    ("retention", "pinned", _ITERATION),
    ("environment", "folder python requirements find_links modules", _ARGUMENT),
    (
        *("environment", "index"),
        _like(r"(https?|file)://[^@\s?#]*", "an address like https://host/simple, without a user or password", False),
    ),
    (
        *("environment", "architectures"),
        _like(r"\d{1,2}\.\d[af]?(\+PTX)?", 'a compute capability, like "8.0" or "9.0+PTX"'),
    ),
    (
        *("environment", "extensions"),
        _like(rf"(?a:{_MODULE}(:[A-Za-z_]\w*)?)", 'an op of DeepSpeed\'s or "module:function"'),
    ),
    ("environment", "imports", _like(rf"(?a:{_MODULE})", "a module's name")),
    (
        *("backup", "to data_to"),
        _like(r"/.*|[a-z][a-z0-9+.-]*://[^\s\x00-\x1f\x7f]+", "an absolute folder or a URL such as s3://bucket/prefix"),
    ),
    (
        *("backup", "to data_to"),
        _Rule(
            lambda value: "@" not in value.partition("://")[2].partition("/")[0] and "?" not in value,
            "a URL without password or key in it: those belong into the store's own files",
            is_shown=False,
        ),
    ),
    ("backup", "full_every weights_every", _from(0)),
    ("backup", "pinned", _ITERATION),
    ("evaluation", "every limit gpus few_shot", _from(0)),
    (
        *("evaluation", "tasks"),
        _like(r"[A-Za-z0-9][A-Za-z0-9_.,+-]*", "a task's name: letters, digits, '_', '-', '.', ',' and '+'"),
    ),
    ("evaluation", "model_args", _like(r"[A-Za-z_]\w*=[^\x00-\x1f]*", 'an entry "name=value"')),
    ("evaluation", "batch_size", _like(r"[1-9]\d{0,5}|auto", 'a number from 1 on in quotes, or "auto"')),
    ("evaluation", "dtype", _one_of(("float32", "bfloat16", "float16"))),
    ("evaluation", "device partition account qos constraint", _WORD),
    ("evaluation", "python include scratch", _PATH),
    ("evaluation", "time", _DURATION),
    (
        *("expect", "seconds_per_iteration evaluation_seconds save_seconds tflops"),
        _Rule(lambda value: 1e-9 <= value <= 1e9, "a number above 0, up to 1e9"),
    ),
    ("gpu", "memory_gb peak_tflops within_node_gbs between_nodes_gbs", _between(0.001, 1_000_000)),
    ("carbon", "country", _like("[A-Z]{3}", "the three letters of ISO 3166, such as FRA")),
    ("carbon", "region", _TEXT),
    ("carbon", "intensity_g_per_kwh", _between(0, 100_000)),
    ("carbon", "pue", _between(1, 10)),
    ("carbon", "gpu_power_w", _between(1, 100_000)),
    ("carbon", "gpu_power_off_percent", _between(0, 99)),
    ("watch", "wait_most silent_most checkpoint_most full_within", _DURATION),
    ("watch", "slower_percent slower_node_percent", _between(1, 1000)),
    ("watch", "tflops_least", _between(1e-9, 1e9)),
    ("watch", "skipped_percent", _between(0, 100)),
    ("watch", "full_percent", _between(1, 100)),
    ("watch", "purge_days", _between(1, 10_000)),
    ("watch", "spare_nodes", _between(0, 100_000)),
    ("watch", "clock_seconds", _between(0.1, 1e9)),
    ("alerts", "escalate_after remind_after remind_most", _DURATION),
    ("alerts", "per_hour", _between(1, 10_000)),
    (
        *("alerts", "quiet"),
        _like(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d", 'two times of day, as "22:00-07:00"'),
    ),
    ("hub", "give_up_after", _DURATION),
    ("hub", "checkpoints_every", _between(1, 10**12)),
    ("hub", "checkpoints", _one_of(HUB_CHECKPOINTS)),
    ("hub", " ".join(KINDS_OF_FILES), _like("(?s:.+)", "a pattern of names, not empty")),
    (
        *("hub", "token"),
        _Rule(
            is_reference,
            'a reference: keep it in a file of your own (chmod 600) and write "file:PATH", or "env:NAME", '
            '"command:..."',
            is_shown=False,
        ),
    ),
    ("cron", "folder group partition account qos constraint", _ARGUMENT),
    ("cron", "time", _DURATION),
    ("cron", "nice", _between(0, 2**31 - 4)),
    ("jobs", "partition internet_partition account qos constraint", _ARGUMENT),
    ("jobs", "time", _DURATION),
    ("jobs", "nice", _between(0, 2**31 - 4)),
    ("cluster", "backend", _one_of(BACKENDS)),
    ("nodes", "most_excluded_percent", _between(0, 100)),
    ("nodes", "shared group", _ARGUMENT),
)


def check_values(path: Path, tables: Tables, profile: bool = False) -> None:
    """Raise RunFileError for the first value that cannot be. In a run file no value may be a secret."""
    found = next(_broken_rules(tables), None) or next(_problems(tables, profile), None)
    if found:
        raise RunFileError(f"{path}: {found}")


def _broken_rules(tables: Tables) -> Iterator[str]:
    for table, keys, rule in _RULES:
        values = tables.get(table) or {}
        for key in keys.split():
            value = values.get(key)
            for one in value if isinstance(value, list | tuple) else (value,):
                if one is not None and not rule.holds(one):
                    what = f"[{table}] {key} = {shown(one)}" if rule.is_shown else f"[{table}] {key}"
                    yield f"{what}: expected {rule.allowed}"


def _problems(tables: Tables, profile: bool) -> Iterator[str]:
    """Yield the problems that no rule for a single value finds."""

    def table(name: str) -> Mapping[str, Any]:
        return tables.get(name) or {}

    slurm, array, backup, evaluation = table("slurm"), table("array"), table("backup"), table("evaluation")
    limit, margin = slurm.get("time"), slurm.get("exit_margin")
    if limit and margin and parse_duration_s(margin) >= parse_duration_s(limit):
        yield f"[slurm] exit_margin = {shown(margin)}: must be less than time = {shown(limit)}"
    yield from filter(None, map(extra_problem, slurm.get("extra", ())))
    if "tasks" in array and (problem := array_problem(array["tasks"])):
        yield f"[array] tasks = {shown(array['tasks'])}: {problem}"
    try:
        size_in_bytes(backup.get("limit") or "1B")
    except ValueError as error:
        yield f"[backup] limit: {error}"
    tasks = evaluation.get("tasks", ())
    yield from (f"[evaluation] tasks has {shown(one)} twice" for one in tasks if tasks.count(one) > 1)
    region = table("carbon").get("region")
    if region and not table("carbon").get("country"):
        yield f"[carbon] region = {shown(region)}: region needs country, which is missing"
    yield from filter(None, (variable_problem(name, value) for name, value in table("env").items()))
    yield from _program_problems(tables)
    yield from _watch_problems(table("watch"), profile)
    yield from _channel_problems(table("alerts"), may_have_secret=profile)
    yield from _repository_problems(table("hub"))


def _program_problems(tables: Tables) -> Iterator[str]:
    program = tables.get("program")
    if program is None:
        return
    if not program.get("command"):
        yield "[program] command is empty: allowed are a program and its arguments"
    for name in ("trainer", "data", "checkpoints"):
        if tables.get(name):
            yield f"[{name}] configures our trainer, and [program] starts another: remove one of the two tables"
    for key in ("complete", "progress"):
        if program.get(key) and program.get("kind", COMMAND) != COMMAND:
            yield f'[program] {key} belongs to kind = "{COMMAND}": {program["kind"]} has its own'
    try:
        groups = set(re.compile(program.get("progress") or "").groupindex)
    except re.error as error:
        yield f"[program] progress is no regular expression: {error}"
    else:
        unknown = sorted(groups - set(PROGRESS_GROUPS))
        if unknown or (program.get("progress") and "iteration" not in groups):
            names = ", ".join(PROGRESS_GROUPS)
            yield f"[program] progress: (?P<iteration>...) is required, and allowed are the groups {names}"


def _watch_problems(watch: Mapping[str, Any], profile: bool) -> Iterator[str]:
    for key in _OF_A_PROFILE:
        if key in watch and not profile:
            yield f"[watch] {key} names what is run: it is allowed only in a profile"
    if "quota_command" in watch and not watch["quota_command"]:
        yield "[watch] quota_command is empty: expected a program and its arguments"
    try:
        re.compile(watch.get("quota_pattern") or "")
    except re.error as error:
        yield f"[watch] quota_pattern is no regular expression: {error}"


def _channel_problems(alerts: Mapping[str, Any], may_have_secret: bool) -> Iterator[str]:
    """Name the first that cannot be by its place, for it may be a secret."""
    for key in ("channels", "escalate_to"):
        for number, text in enumerate(alerts.get(key) or (), start=1):
            if problem := written_problem(text, may_have_secret):
                yield f"[alerts] {key}, number {number}: {problem}"
    heartbeat = alerts.get("heartbeat")
    if heartbeat is not None:
        problem = form_problem(heartbeat) or written_problem(heartbeat, may_have_secret)
        if problem or kind_of(heartbeat) == HOOK:
            yield f"[alerts] heartbeat: {problem or 'a program is no heartbeat'}"


def _repository_problems(hub: Mapping[str, Any]) -> Iterator[str]:
    for key in ("repo", *(f"{kind}_repo" for kind in KINDS)):
        name = hub.get(key)
        if name is None or _is_repo(name):
            continue
        if "://" in name:  # not repeated: it may have a password in it
            yield (
                f"[hub] {key} is a URL, and git servers are not supported: expected OWNER/NAME of a hub; "
                "HF_ENDPOINT names a hub that is not huggingface.co"
            )
        else:
            yield f'[hub] {key} = {shown(name)}: expected OWNER/NAME, such as "lab/tr1-13B-logs"'


def _is_repo(name: str) -> bool:
    if name.endswith(".git"):  # the hub takes no such name
        return False
    return bool(_REPO.fullmatch(name)) and "--" not in name and ".." not in name and len(name) <= 96


def check_output(path: Path, output: str) -> None:
    """Raise RunFileError for an output folder that no script can name on one line."""
    if not output or any(character in output for character in "\n\r\0"):
        raise RunFileError(f"{path}: [run] output = {shown(output)}: expected a folder's path on one line")
    if any(_HALF_PAIRS[0] <= character <= _HALF_PAIRS[1] for character in output):
        raise RunFileError(f"{path}: [run] output = {shown(output)}: expected a folder's path in UTF-8; rename it")


def extra_problem(entry: str) -> str | None:
    """Return why this cannot stand in `[slurm] extra`; None where it can."""
    match = _EXTRA.fullmatch(entry)
    if not match:
        return f'[slurm] extra {shown(entry)}: an entry is one "--option" or "--option=value" without blanks or quotes'
    name = match["name"]
    # sbatch takes abbreviations.
    own = next((own for own in sorted(OWN_SBATCH_OPTIONS) if own.startswith(name)), None)
    if own is None or name in _OTHER_SBATCH_OPTIONS:
        return None
    key = own.replace("-", "_")
    instead = f"set [slurm] {key}" if key in SlurmTable.__struct_fields__ else "remove it"
    return f"[slurm] extra {shown(entry)}: --{own} is opsctl's own to set; {instead}"


def is_launchers(name: str) -> bool:
    """Return whether Slurm or the launcher sets the variable for every rank."""
    return name in _LAUNCHER_VARIABLES or name.startswith("SLURM_")


def variable_problem(name: str, value: str) -> str | None:
    """Return why this variable cannot stand in `[env]`; None where it can."""
    if not VARIABLE_NAME.fullmatch(name):
        return f"[env] {shown_key(name)} is not a variable's name: letters, digits and _, not starting with a digit"
    if is_launchers(name):
        return f"[env] {name} is set for every rank by Slurm and the launcher; remove it"
    # A path only says where a secret is, as HF_TOKEN_PATH does.
    is_path = value.startswith(("/", "~", "./", "${")) and "/" in value
    if _SECRET.search(name) and not is_path:
        return (
            f"[env] {name} looks like a secret, and the whole group can read this file: export it in the "
            "environment script, or name a file that contains it"
        )
    if any(character in value for character in "\n\r\0"):
        return f"[env] {name} = {shown(value)}: expected text on one line"
    return None
