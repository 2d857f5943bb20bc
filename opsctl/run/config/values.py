"""What the values of a run file's own tables may be, `[watch]` and `[alerts]` apart, beyond their types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsctl.core.errors import RunFileError
from opsctl.run.config.expansion import VARIABLE_NAME
from opsctl.run.config.file_kinds import KINDS, KINDS_OF_FILES
from opsctl.run.config.schema import HUB_CHECKPOINTS, INSTALLERS, PROBES, PUBLISHERS, QUOTA_KINDS, RunFile, SlurmTable
from opsctl.run.config.secret_references import HOOK, form_problem, is_reference, kind_of, written_problem
from opsctl.run.config.toml_types import shown, shown_key
from opsctl.slurm.arrays import array_problem
from opsctl.slurm.cluster import BACKENDS
from opsctl.slurm.durations import DURATION_RULE, parse_duration_s
from trainer.formats.byte_sizes import size_in_bytes

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
RUN_NAME_RULE = "letters, digits, '.', '_' and '-', starting with a letter or digit, at most 128"
_EXTRA = re.compile(r"--(?P<name>[a-z][a-z0-9-]*)(=(?P<value>[^\s'\"\\#]+))?")
#: A `#SBATCH` line cuts at blanks and comments and takes quotes for itself, so these values have none.
_WORD = re.compile(r"[^\s'\"\\#-][^\s'\"\\#]*")
_WORDS = ("partition", "account", "qos", "constraint", "reservation", "gpu_type", "exclude")
_MOST = {"nodes": 100_000, "gpus_per_node": 64, "cpus_per_task": 4_096}
_MOST_SPARE = 1_000
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
#: Names whose values nobody should write into a file that a group shares.
_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_KEY)(_|$)", re.IGNORECASE)
#: What Python makes of a byte of a file's name that is no UTF-8: neither sbatch nor JSON can be handed one.
_HALF_PAIRS = ("\ud800", "\udfff")
_CARBON = {
    "intensity_g_per_kwh": (0, 1e5),
    "pue": (1, 10),
    "gpu_power_w": (1, 1e5),
    "gpu_power_off_percent": (0, 99),
    "idle_node_w": (0, 1e6),
    "node_kg": (0, 1e6),
    "gpu_kg": (0, 1e6),
    "years": (0.1, 100),
    "busy_percent": (1, 100),
}
_INDEX = re.compile(r"(https?|file)://[^@\s?#]*")
_ARCHITECTURE = re.compile(r"\d{1,2}\.\d[af]?(\+PTX)?")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_EXTENSION = re.compile(rf"{_MODULE.pattern}(:[A-Za-z_]\w*)?", re.ASCII)
_DESTINATION = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\x00-\x1f\x7f]+")
_TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,+-]*")
_MODEL_ARGUMENT = re.compile(r"[A-Za-z_]\w*=[^\x00-\x1f]*")
_BATCH = re.compile(r"[1-9]\d{0,5}|auto")
_DTYPE = re.compile(r"float32|bfloat16|float16")
_LINE = re.compile(r"[^\x00-\x1f\x7f]*[^\x00-\x20\x7f]")
_LAUNCHER_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})


def check_values(path: Path, file: RunFile) -> None:
    """Raise RunFileError for the first value that cannot be."""
    rules = (
        _run,
        _slurm,
        _times,
        _extra,
        _array,
        _retention,
        _environment,
        _backup,
        _evaluation,
        _expect,
        _gpu,
        _carbon,
        _env,
    )
    problem = next((found for rule in rules if (found := rule(file))), None)
    if problem:
        raise RunFileError(f"{path}: {problem}")


def check_output(path: Path, output: str) -> None:
    """Raise RunFileError for an output folder that no script can name on one line."""
    if not output or any(character in output for character in "\n\r\0"):
        raise RunFileError(f"{path}: [run] output = {shown(output)}: allowed is a folder's path on one line")
    if any(_HALF_PAIRS[0] <= character <= _HALF_PAIRS[1] for character in output):
        raise RunFileError(f"{path}: [run] output = {shown(output)}: allowed is a folder's path in UTF-8; rename it")


def _run(file: RunFile) -> str | None:
    if not RUN_NAME.fullmatch(file.run.name):
        return f"[run] name = {shown(file.run.name)}: allowed are {RUN_NAME_RULE}"
    for key in ("output", "environment", "group", "team"):
        value = getattr(file.run, key)
        if value is not None and (not value.strip() or any(not character.isprintable() for character in value)):
            return f"[run] {key} = {shown(value)}: allowed is text on one line, not empty"
    if file.run.publish not in PUBLISHERS:
        return f"[run] publish = {shown(file.run.publish)}: allowed is {' or '.join(map(shown, PUBLISHERS))}"
    return None


def _slurm(file: RunFile) -> str | None:
    for key, most in _MOST.items():
        value = getattr(file.slurm, key)
        if value is not None and not 1 <= value <= most:
            return f"[slurm] {key} = {shown(value)}: allowed is a whole number from 1 to {most}"
    if not 0 <= file.slurm.spare <= _MOST_SPARE:
        return f"[slurm] spare = {shown(file.slurm.spare)}: allowed is a whole number from 0 to {_MOST_SPARE}"
    if file.slurm.probe is not None and file.slurm.probe not in PROBES:
        return f"[slurm] probe = {shown(file.slurm.probe)}: allowed is {' or '.join(map(shown, PROBES))}"
    for key in _WORDS:
        value = getattr(file.slurm, key)
        if value is not None and not _is_word(value):
            return (
                f"[slurm] {key} = {shown(value)}: allowed is one word without blanks, quotes or #, not starting with -"
            )
    if file.slurm.nice is not None and abs(file.slurm.nice) > 2**31 - 4:
        return f"[slurm] nice = {shown(file.slurm.nice)}: allowed is -2147483644 to 2147483644"
    return None


def _is_word(value: str) -> bool:
    return bool(_WORD.fullmatch(value)) and value.isprintable()


def _times(file: RunFile) -> str | None:
    seconds = {}
    for key in ("time", "exit_margin"):
        value = getattr(file.slurm, key)
        try:
            seconds[key] = parse_duration_s(value)
        except ValueError:
            return f"[slurm] {key} = {shown(value)}: allowed is {DURATION_RULE}"
    if not 60 <= seconds["time"] <= 10 * 365 * 86400:
        return f"[slurm] time = {shown(file.slurm.time)}: allowed is one minute to ten years, as {DURATION_RULE}"
    if not 0 < seconds["exit_margin"] < seconds["time"]:
        margin, limit = shown(file.slurm.exit_margin), shown(file.slurm.time)
        return f"[slurm] exit_margin = {margin}: allowed is more than nothing and less than time = {limit}"
    return None


def _extra(file: RunFile) -> str | None:
    return next((found for entry in file.slurm.extra if (found := extra_problem(entry))), None)


def extra_problem(entry: str) -> str | None:
    """Why this cannot stand in `[slurm] extra`; None where it can."""
    match = _EXTRA.fullmatch(entry)
    if not match:
        return f'[slurm] extra {shown(entry)}: an entry is one "--option" or "--option=value" without blanks or quotes'
    own = _own_option(match["name"])
    if own:
        instead = (
            f"set [slurm] {own.replace('-', '_')}"
            if own.replace("-", "_") in SlurmTable.__struct_fields__
            else "leave it out"
        )
        return f"[slurm] extra {shown(entry)}: --{own} is opsctl's own to set; {instead}"
    return None


def _own_option(name: str) -> str | None:
    """The option of ours that `--name` would set: itself or, since sbatch takes abbreviations, one it begins."""
    if name in _OTHER_SBATCH_OPTIONS:
        return None
    return next((own for own in sorted(OWN_SBATCH_OPTIONS) if own.startswith(name)), None)


def _array(file: RunFile) -> str | None:
    problem = array_problem(file.array.tasks)
    return f"[array] tasks = {shown(file.array.tasks)}: {problem}" if problem else None


def _retention(file: RunFile) -> str | None:
    table = file.retention
    if table is None:
        return None
    if table.last < 2:
        return f"[retention] last = {shown(table.last)}: allowed is a whole number from 2 on"
    for key in ("every", "until_backed_up"):
        if getattr(table, key) < 0:
            return f"[retention] {key} = {shown(getattr(table, key))}: allowed is a whole number from 0 on"
    if not 0 <= table.full_percent <= 100:  # false for nan
        return f"[retention] full_percent = {shown(table.full_percent)}: allowed is a number from 0 to 100"
    if any(one < 1 for one in table.pinned):
        return f"[retention] pinned = {shown(list(table.pinned))}: allowed are iterations from 1 on"
    return None


def _environment(file: RunFile) -> str | None:
    table = file.environment
    if table is None:
        return None
    if table.tool not in INSTALLERS:
        return f"[environment] tool = {shown(table.tool)}: allowed is {' or '.join(map(shown, INSTALLERS))}"
    for key in table.__struct_fields__:
        value = getattr(table, key)
        for one in (value,) if isinstance(value, str) else value or ():
            if not one.strip() or not one.isprintable() or one.startswith("-"):
                return (
                    f"[environment] {key} = {shown(one)}: allowed is text on one line, not empty, not starting with -"
                )
    if table.index is not None and not _INDEX.fullmatch(table.index):
        return "[environment] index: allowed is an address like https://host/simple, without a user or password in it"
    wrong = next((one for one in table.architectures if not _ARCHITECTURE.fullmatch(one)), None)
    if wrong is not None:
        return (
            f'[environment] architectures = {shown(wrong)}: allowed are compute capabilities, like "8.0" or "9.0+PTX"'
        )
    wrong = next((one for one in table.extensions if not _EXTENSION.fullmatch(one)), None)
    if wrong is not None:
        return f'[environment] extensions = {shown(wrong)}: allowed are an op of DeepSpeed\'s or "module:function"'
    wrong = next((one for one in table.imports if not _MODULE.fullmatch(one)), None)
    return f"[environment] imports = {shown(wrong)}: allowed are modules' names" if wrong is not None else None


def _backup(file: RunFile) -> str | None:
    table = file.backup
    if table is None:
        return None
    for key, one in (*(("to", one) for one in table.to), *(("data_to", one) for one in table.data_to)):
        if not one.startswith("/") and not _DESTINATION.fullmatch(one):
            return f"[backup] {key} = {shown(one)}: allowed are an absolute folder and a URL such as s3://bucket/prefix"
        if "@" in one.partition("://")[2].partition("/")[0] or "?" in one:
            return f"[backup] {key}: a URL here has no password or key in it: those belong into the store's own files"
    for key in ("full_every", "weights_every"):
        if getattr(table, key) < 0:
            return f"[backup] {key} = {shown(getattr(table, key))}: allowed is a whole number from 0 on"
    if any(one < 1 for one in table.pinned):
        return f"[backup] pinned = {shown(list(table.pinned))}: allowed are iterations from 1 on"
    try:
        size_in_bytes(table.limit or "1B")
    except ValueError as error:
        return f"[backup] limit: {error}"
    return None


def _evaluation(file: RunFile) -> str | None:
    table = file.evaluation
    if table is None:
        return None
    for key in ("every", "limit", "gpus", "few_shot"):
        if (getattr(table, key) or 0) < 0:
            return f"[evaluation] {key} = {shown(getattr(table, key))}: allowed is a whole number from 0 on"
    twice = next((one for one in table.tasks if table.tasks.count(one) > 1), None)
    if twice is not None:
        return f"[evaluation] tasks has {shown(twice)} twice"
    for key, rule, allowed in (
        ("tasks", _TASK, "names of tasks: letters, digits, '_', '-', '.', ',' and '+'"),
        ("model_args", _MODEL_ARGUMENT, 'entries "name=value"'),
        ("batch_size", _BATCH, 'a number from 1 on in quotes, or "auto"'),
        ("dtype", _DTYPE, "float32, bfloat16 or float16"),
        *((key, _WORD, "one word") for key in ("device", "partition", "account", "qos", "constraint")),
        *((key, _LINE, "a path on one line") for key in ("python", "include", "scratch")),
    ):
        value = getattr(table, key)
        for one in (value,) if isinstance(value, str) else value or ():
            if not rule.fullmatch(one):
                return f"[evaluation] {key} = {shown(one)}: allowed is {allowed}"
    try:
        parse_duration_s(table.time or "1:00:00")
    except ValueError:
        return f"[evaluation] time = {shown(table.time)}: allowed is {DURATION_RULE}"
    return None


def _expect(file: RunFile) -> str | None:
    for key in file.expect.__struct_fields__:
        value = getattr(file.expect, key)
        if value is not None and not 1e-9 <= value <= 1e9:  # false for nan
            return f"[expect] {key} = {shown(value)}: allowed is a number above 0, up to 1e9"
    return None


def _gpu(file: RunFile) -> str | None:
    for key in file.gpu.__struct_fields__:
        value = getattr(file.gpu, key)
        if value is not None and not 1e-3 <= value <= 1e6:  # false for nan
            return f"[gpu] {key} = {shown(value)}: allowed is a number from 0.001 to 1e+06"
    return None


def _carbon(file: RunFile) -> str | None:
    table = file.carbon
    if table.country is not None and not re.fullmatch("[A-Z]{3}", table.country):
        return f"[carbon] country = {shown(table.country)}: allowed are the three letters of ISO 3166, such as FRA"
    if table.region is not None and (table.country is None or not table.region.isprintable()):
        return f"[carbon] region = {shown(table.region)}: allowed is a name on one line, beside country"
    for key, (least, most) in _CARBON.items():
        value = getattr(table, key)
        if value is not None and not least <= value <= most:  # false for nan
            return f"[carbon] {key} = {shown(value)}: allowed is a number from {least:g} to {most:g}"
    return None


def _is_path(value: str) -> bool:
    """A path only says where a secret is, as HF_TOKEN_PATH does."""
    return value.startswith(("/", "~", "./", "${")) and "/" in value


def _env(file: RunFile) -> str | None:
    return next((found for name, value in file.env.items() if (found := variable_problem(name, value))), None)


def is_launchers(name: str) -> bool:
    """Whether Slurm or the launcher sets the variable for every rank."""
    return name in _LAUNCHER_VARIABLES or name.startswith("SLURM_")


def variable_problem(name: str, value: str) -> str | None:
    """Why this variable cannot stand in `[env]`; None where it can."""
    if not VARIABLE_NAME.fullmatch(name):
        return f"[env] {shown_key(name)} is not a variable's name: letters, digits and _, not starting with a digit"
    if is_launchers(name):
        return f"[env] {name} is set for every rank by Slurm and the launcher; leave it out"
    if _SECRET.search(name) and not _is_path(value):
        return (
            f"[env] {name} looks like a secret, and the whole group reads what is written here: export it in the "
            "environment script, or name a file that holds it"
        )
    if any(character in value for character in "\n\r\0"):
        return f"[env] {name} = {shown(value)}: allowed is text on one line"
    return None


_REPO = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_REPO_KEYS = ("repo", *(f"{kind}_repo" for kind in KINDS))


def check_hub(path: Path, hub: Mapping[str, Any]) -> None:
    """Raise RunFileError for the first value that cannot be. A token is never repeated, for it may be one."""
    for key in _REPO_KEYS:
        name = hub.get(key)
        if name is None or _is_repo(name):
            continue
        if "://" in name:  # not repeated: it may have a password in it
            raise RunFileError(
                f"{path}: [hub] {key} is a URL, and git servers are not supported: allowed is OWNER/NAME of a hub; "
                "HF_ENDPOINT names a hub that is not huggingface.co"
            )
        raise RunFileError(f'{path}: [hub] {key} = {shown(name)}: allowed is OWNER/NAME, as in "lab/tr1-13B-logs"')
    for kind in KINDS_OF_FILES:
        if any(not pattern for pattern in hub.get(kind, ())):
            raise RunFileError(f"{path}: [hub] {kind} has an empty pattern, which matches no name")
    wrong = next((kind for kind in hub.get("mirror", ()) if kind not in KINDS_OF_FILES), None)
    if wrong is not None:
        why = ": what prune removes here stays there" if wrong in KINDS else ""
        raise RunFileError(f"{path}: [hub] mirror has {shown(wrong)}{why}: allowed are {', '.join(KINDS_OF_FILES)}")
    how = hub.get("checkpoints")
    if how is not None and how not in HUB_CHECKPOINTS:
        allowed = ", ".join(HUB_CHECKPOINTS)
        raise RunFileError(f"{path}: [hub] checkpoints = {shown(how)}: allowed are {allowed}")
    token = hub.get("token")
    if token is not None and not is_reference(token):
        raise RunFileError(
            f'{path}: [hub] token is no reference: keep it in a file of your own (chmod 600) and write "file:PATH", '
            'or "env:NAME", "command:..."'
        )


def _is_repo(name: str) -> bool:
    if name.endswith(".git"):  # the hub takes no such name
        return False
    return bool(_REPO.fullmatch(name)) and "--" not in name and ".." not in name and len(name) <= 96


_DURATIONS = {
    "watch": ("wait_most", "silent_most", "checkpoint_most", "full_within"),
    "alerts": ("escalate_after", "remind_after", "remind_most"),
    "hub": ("give_up_after",),
    "cron": ("time",),
    "jobs": ("time",),
}
#: (table, key) -> least, most.
_NUMBERS = {
    ("array", "keep_queued"): (0, 100),
    ("watch", "slower_percent"): (1, 1000),
    ("watch", "slower_node_percent"): (1, 1000),
    ("watch", "tflops_least"): (1e-9, 1e9),
    ("watch", "skipped_percent"): (0, 100),
    ("watch", "full_percent"): (1, 100),
    ("watch", "purge_days"): (1, 10_000),
    ("watch", "spare_nodes"): (0, 100_000),
    ("watch", "clock_seconds"): (0.1, 1e9),
    ("alerts", "per_hour"): (1, 10_000),
    ("hub", "checkpoints_every"): (1, 10**12),
    ("cron", "nice"): (0, 2**31 - 4),
    ("jobs", "nice"): (0, 2**31 - 4),
    ("nodes", "most_excluded_percent"): (0, 100),
}
_QUIET = re.compile(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d")
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)*", re.ASCII)
_WHOSE = re.compile(r"user|(user|group|project):[A-Za-z0-9_][A-Za-z0-9_.@+-]*")
_DESK_WORDS = {
    "cron": ("folder", "group", "partition", "account", "qos", "constraint"),
    "jobs": ("partition", "internet_partition", "account", "qos", "constraint"),
    "nodes": ("shared", "group"),
}


def check_desk(path: Path, written: Mapping[str, Any], profile: bool = False) -> None:
    """Raise RunFileError for the first value that cannot be; types are known to be right.

    A run file is published for its group, so none has a secret in it; whether a profile may is seen when it is used.
    """
    for table, keys in _DURATIONS.items():
        for key in keys:
            _check_duration(path, table, key, written.get(table, {}).get(key))
    for (table, key), (least, most) in _NUMBERS.items():
        value = written.get(table, {}).get(key)
        if value is not None and not least <= value <= most:
            raise RunFileError(f"{path}: [{table}] {key} = {shown(value)}: allowed is a number from {least} to {most}")
    quiet = written.get("alerts", {}).get("quiet")
    if quiet is not None and not _QUIET.fullmatch(quiet):
        raise RunFileError(f'{path}: [alerts] quiet = {shown(quiet)}: allowed are two times of day, as "22:00-07:00"')
    backend = written.get("cluster", {}).get("backend", BACKENDS[0])
    if backend not in BACKENDS:
        raise RunFileError(f"{path}: [cluster] backend = {shown(backend)}: allowed is one of {', '.join(BACKENDS)}")
    _check_channels(path, written.get("alerts", {}), may_have_secret=profile)
    _check_quota(path, written.get("watch", {}), profile)
    check_hub(path, written.get("hub", {}))
    support = written.get("nodes", {}).get("support")
    if support is not None and not _ADDRESS.fullmatch(support):
        raise RunFileError(f"{path}: [nodes] support = {shown(support)}: allowed is one mail address")
    for table, keys in _DESK_WORDS.items():
        for key in keys:
            _check_word(path, table, key, written.get(table, {}).get(key))


def _check_quota(path: Path, watch: Mapping[str, Any], profile: bool) -> None:
    for key in ("quota_command", "quota_pattern", "quota", "quota_of", "touch"):
        if key in watch and not profile:
            what = "is the site's to say" if key == "touch" else "names what is run"
            raise RunFileError(f"{path}: [watch] {key} {what}: it may stand in a profile only")
    if watch.get("quota", QUOTA_KINDS[0]) not in QUOTA_KINDS:
        raise RunFileError(
            f"{path}: [watch] quota = {shown(watch['quota'])}: allowed is one of {', '.join(QUOTA_KINDS)}"
        )
    for whose in watch.get("quota_of", ()):
        if not _WHOSE.fullmatch(whose):
            raise RunFileError(
                f'{path}: [watch] quota_of has {shown(whose)}: allowed are "user", "user:NAME", "group:NAME" and '
                '"project:NAME"'
            )
    if "quota_command" in watch and not watch["quota_command"]:
        raise RunFileError(f"{path}: [watch] quota_command is empty: allowed are a program and its arguments")
    try:
        re.compile(watch.get("quota_pattern") or "")
    except re.error as error:
        raise RunFileError(f"{path}: [watch] quota_pattern is no regular expression: {error}") from None


def _check_channels(path: Path, alerts: Mapping[str, Any], may_have_secret: bool) -> None:
    """Name the first that cannot be by its place, for it may be a secret."""
    for key in ("channels", "escalate_to"):
        for number, text in enumerate(alerts.get(key) or (), start=1):
            problem = written_problem(text, may_have_secret)
            if problem:
                raise RunFileError(f"{path}: [alerts] {key}, number {number}: {problem}")
    heartbeat = alerts.get("heartbeat")
    if heartbeat is not None:
        problem = form_problem(heartbeat) or written_problem(heartbeat, may_have_secret)
        if problem or kind_of(heartbeat) == HOOK:
            raise RunFileError(f"{path}: [alerts] heartbeat: {problem or 'a program is no heartbeat'}")


def _check_word(path: Path, table: str, key: str, word: str | None) -> None:
    if word is not None and (not word.strip() or not word.isprintable() or word.startswith("-")):
        raise RunFileError(f"{path}: [{table}] {key} = {shown(word)}: allowed is text on one line, not empty")


def _check_duration(path: Path, table: str, key: str, value: str | None) -> None:
    if value is None:
        return
    try:
        seconds = parse_duration_s(value)
    except ValueError:
        seconds = 0
    if not 0 < seconds <= 10 * 365 * 86400:
        raise RunFileError(f"{path}: [{table}] {key} = {shown(value)}: allowed is {DURATION_RULE}, up to ten years")
