"""The page: one file of HTML with its data, script and style inside. It fetches nothing, and runs nothing but its own.

What comes from logs and run files reaches it as JSON alone, in which no `<` stands, and is put on the screen as text.
The policy in its head names the two scripts and two styles by their digests: another one would not run.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import html
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template

import msgspec

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files import state_files
from opsctl.run.config.paths import RunPaths
from opsctl.ui.report.page_data import PageData

_FOLDER = Path(__file__).parent / "page"
#: In the order in which they build on one another.
_MODULES = ("data.js", "colours.js", "drawn.js", "touch.js", "curves.js", "controls.js", "tables.js", "main.js")
_STYLES = ("uPlot.min.css", "page.css")
#: What every page begins with, and no log.
_BEGINS = b"<!DOCTYPE html"
_BETWEEN_MODULES = re.compile(r"^import [^;]*;\n|^export (?=const|let|function|class|async)", re.MULTILINE)


def page_html(data: PageData) -> str:
    """The whole file."""
    library = _read("uPlot.iife.min.js")
    script = "\n".join(_BETWEEN_MODULES.sub("", _read(name)) for name in _MODULES)
    style = "\n".join(_read(name) for name in _STYLES)
    policy = (
        f"default-src 'none'; script-src {_digest(library)} {_digest(script)}; style-src {_digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return Template(_read("page.html")).substitute(
        policy=html.escape(policy, quote=False),
        title=html.escape(data.title),
        style=style,
        library=library,
        data=json_in_html(data),
        script=script,
        licence=html.escape(_read("uPlot.LICENSE").replace("--", "- -")),
    )


def write_page(text: str, path: Path | None, own: RunPaths | None, logs: Sequence[Path] = ()) -> Path:
    """Put the page in the place of the one before, in one step, and say where.

    path: None is the page of the run `own`, and without one `report.html` here. logs: what it is made of. Raises
    OpsctlError.
    """
    where = path or (own.page if own is not None else Path("report.html"))
    if path is None and own is not None and not own.output.exists():
        raise OpsctlError(
            f"{own.output}: nothing has been submitted yet, so there is no log; opsctl submit begins, "
            "--output FILE writes the plan alone"
        )
    try:
        if path is not None or own is None:
            _check_place(where, logs)
        if path is None and own is not None:
            state_files.make_folder(own.output, where.parent)
            state_files.write_atomically(own.output, where, text)
        else:
            state_files.replace_named_file(where, text)
    except OSError as error:
        raise OpsctlError(
            f"{where}: cannot write the page: {file_problem(error)}; --output FILE names another place"
        ) from None
    return where


def _check_place(where: Path, logs: Sequence[Path]) -> None:
    """Raises OSError where something else than a page is: a log, months of somebody's work."""
    for log in logs:
        with contextlib.suppress(FileNotFoundError):
            if where.samefile(log):
                raise FileExistsError(errno.EEXIST, "it is the log", str(where))
    if not where.exists():
        return
    if not where.is_file():
        raise FileExistsError(errno.EEXIST, "there is something that is no plain file", str(where))
    with where.open("rb") as file:
        if file.read(len(_BEGINS)) != _BEGINS:
            raise FileExistsError(errno.EEXIST, "there is a file that is no page", str(where))


def json_in_html(data: PageData) -> str:
    """JSON in which nothing ends or begins an element or a comment, whatever names and lines of a log hold."""
    text = msgspec.json.encode(data).decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
