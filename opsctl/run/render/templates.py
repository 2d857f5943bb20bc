"""The Jinja environment of our scripts: nothing undefined passes, every value goes through a quoting filter."""

from __future__ import annotations

from typing import Any

from opsctl.core.shipped import templates_folder
from opsctl.run.render.quoting import directive_word, shell_word


def render_template(name: str, **values: Any) -> str:
    """The text of `templates/NAME` with `values`; a name the template asks for and nobody gave is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(templates_folder()),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["shell"] = shell_word
    environment.filters["directive"] = directive_word
    return environment.get_template(name).render(**values)
