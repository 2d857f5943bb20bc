"""The hook of mkdocs that writes the reference pages from the program itself.

A page has its own text and a line `<!-- made: NAME -->`, which the built site replaces by what `MADE[NAME]` returns.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from enum import Enum
from inspect import cleandoc
from typing import Any

import click
import msgspec

from opsctl.cli import GROUPS, root
from opsctl.cli.json_schema import all_printed, document, may_be_missing, shapes
from opsctl.cli.man import commands_below, context_of, help_paragraphs, options_of
from opsctl.monitoring.check import Detector
from opsctl.monitoring.registry import DETECTORS, FAMILIES, command_name
from opsctl.run.config.schema import WatchTable
from opsctl.ui.doctor.gather import CHECKS
from trainer.recipe.option_help import described, options_by_group, values_of
from trainer.recipe.option_table import REFUSED

_MARK = re.compile(r"^<!-- made: (\w+) -->$", re.MULTILINE)
_EVERYWHERE = {"--help", "-h, --help"}
#: Characters that Markdown interprets. Text in backticks stays as it is.
_TEXT = re.compile(r"(`[^`]*`)|([|<*\[\]\\])")
_GRADES = re.compile(r"(?<=[.?\s])\s*([0-3]): ")
_GRADE_WORDS = {"0": "ok", "1": "warning", "2": "critical", "3": "unknown"}
_SETTING = re.compile(r"`(\[\w+\]) (\w+)`")
_TYPE_WORDS: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    datetime: "time",
    Any: "any value",
    type(None): "null",
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marks of a page. mkdocs calls this for every page."""
    return _MARK.sub(lambda mark: MADE[mark[1]](), markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Load the script that the search needs on disk from the site, not from the internet. mkdocs calls this."""
    return _with_own_script(output, "../" * page.url.count("/"))


def on_post_template(output_content: str, **_: Any) -> str:
    """Do the same for pages without a source, such as 404.html. mkdocs calls this."""
    return _with_own_script(output_content, "")


def _with_own_script(html: str, root: str) -> str:
    return html.replace("https://unpkg.com/iframe-worker/shim", f"{root}assets/iframe-worker.min.js")


def on_files(files: Any, config: Any) -> Any:
    """Add the JSON Schema of everything that commands print. mkdocs calls this once."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "schemas/1.json", content=json.dumps(document(all_printed()), indent=1) + "\n"))
    return files


def commands() -> str:
    """Return what `--help` prints of every command."""
    lines = []
    for heading, names in GROUPS.items():
        lines.append(f"## {heading}")
        for name in names:
            command = root.get_command(click.Context(root), name)
            assert command is not None
            for words, below in commands_below(("opsctl", name), command):
                lines += _command(words, below)
    return "\n\n".join(lines)


def _command(words: tuple[str, ...], command: click.Command) -> Iterator[str]:
    context = context_of(words, command)
    yield f"{'#' * (len(words) + 1)} {' '.join(words)}"
    yield f"```\n{' '.join([*words, *command.collect_usage_pieces(context)])}\n```"
    for lines, kept in help_paragraphs(command):
        yield "\n".join(["```", *lines, "```"]) if kept else _literal(" ".join(lines))
    options = [
        (f"`{names}`", _literal(what))
        for names, what in options_of(command, context)
        if what and names not in _EVERYWHERE
    ]
    if options:
        yield _table(["", ""], options)


def _literal(text: str) -> str:
    """Return `text` so that Markdown shows it as it is, except for code."""
    return _TEXT.sub(lambda found: found[1] or f"\\{found[2]}", " ".join(text.split()))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def checks() -> str:
    """Return the table of the checks of `opsctl watch`, and the families of checks."""
    families = [
        f"`opsctl watch {name}`: {', '.join(command_name(one) for one in names)}."
        for name, (_, names) in FAMILIES.items()
    ]
    table = _table(["check", "asks", "finds", "settings"], map(_check, DETECTORS))
    return f"{table}\n\nSeveral checks in one command: {' '.join(families)}"


def _check(detector: Detector) -> tuple[str, ...]:
    question, _, rest = " ".join(cleandoc(detector.help).split()).partition("? ")
    parts = _GRADES.split(f" {rest}")
    grades = [
        f"{_GRADE_WORDS[grade]}: {text.strip().removesuffix('.')}"
        for grade, text in zip(parts[1::2], parts[2::2], strict=True)
    ]
    settings = dict.fromkeys(_setting(*found) for found in _SETTING.findall(" ".join(detector.help.split())))
    return f"`{command_name(detector.name)}`", f"{question}?", "; ".join(grades), ", ".join(settings) or "-"


def _setting(table: str, key: str) -> str:
    """Return the key with its default, if it has one."""
    default = getattr(WatchTable(), key, None) if table == "[watch]" else None
    shown = "" if default is None else f" = {str(default).lower() if isinstance(default, bool) else default}"
    return f"`{table} {key}{shown}`"


def doctor() -> str:
    """Return the table of the doctor's checks."""
    return _table(["check", "asks"], [(check.name, check.question) for check in CHECKS])


def trainer_options() -> str:
    """Return all options of the trainer by group, with their table of the run file, and those that are refused."""
    parts = []
    for group, options in options_by_group():
        rows = [(f"`{one.name}`", values_of(one).replace("|", r"\|"), one.table, described(one)) for one in options]
        parts += [f"## {group.capitalize()}", _table(["option", "values", "table", ""], rows)]
    refused = _table(["option", "reason"], [(f"`{name}`", reason) for name, reason in REFUSED.items()])
    return "\n\n".join([*parts, "## Refused", refused])


def json_output() -> str:
    """Return the keys that each command prints, then every shape once, in the order in which they are met."""
    printed = [
        (f"`opsctl {one.command}`{f', {one.when}' if one.when else ''}", f"`{one.key}`", type_words(one.shape))
        for one in all_printed()
    ]
    parts = ["## Commands", _table(["command", "key", "shape"], printed), "## Shapes"]
    for struct in shapes(one.shape for one in all_printed()):
        about = _cell(cleandoc(struct.__doc__ or ""))
        rows = [(f"`{one.encode_name}`", _cell(words), _cell(description_of(one))) for one, words in fields_of(struct)]
        parts += [f"### {name_of(struct)}", about, _table(["key", "type", ""], rows)]
    return "\n\n".join(parts)


def fields_of(struct: type[msgspec.Struct]) -> Iterator[tuple[msgspec.structs.FieldInfo, str]]:
    """Yield each field with its type in words."""
    for field in msgspec.structs.fields(struct):
        words = type_words(field.type)
        if may_be_missing(struct, field):
            words = words.removesuffix(" or null") + "; may be missing"
        yield field, words


def name_of(struct: type[msgspec.Struct]) -> str:
    """Return the name of a shape on the page: `RampUp` is "ramp up", `PrintedJob` is "job"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", struct.__name__.removeprefix("Printed")).lower()


def description_of(field: msgspec.structs.FieldInfo) -> str:
    """Return the sentence of a field. Raises ValueError if it has none."""
    for meta in getattr(field.type, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.description:
            return meta.description
    raise ValueError(f"field {field.name} has no description: Annotated[..., Meta(description=...)]")


def type_words(kind: Any) -> str:
    """Return a type in words, a struct as a link to its table."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return type_words(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_words(one) for one in inner)
    if origin is typing.Literal:
        return ", ".join(f"`{one}`" for one in inner)
    if origin in (list, tuple):
        return f"list of {type_words(inner[0])}"
    if origin is dict:
        return f"object: key to {type_words(inner[1])}"
    if kind in _TYPE_WORDS:
        return _TYPE_WORDS[kind]
    if issubclass(kind, Enum):
        return ", ".join(f"`{one.value}`" for one in kind)
    return f"[{name_of(kind)}](#{name_of(kind).replace(' ', '-')})"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


MADE: dict[str, Callable[[], str]] = {
    "commands": commands,
    "checks": checks,
    "doctor": doctor,
    "trainer_options": trainer_options,
    "json_output": json_output,
}
