"""The scripts that set up an environment that was built. Pure."""

from __future__ import annotations

from pathlib import Path

from opsctl.run.environments.recipe import Places, Recipe
from opsctl.run.render.templates import render_template


def activation_script(recipe: Recipe, folder: Path) -> str:
    """To be sourced: the environment in `folder`."""
    table = recipe.table
    return render_template(
        "environment-activate.sh.j2",
        folder=str(folder),
        group=recipe.group,
        modules=table.modules,
        architectures=table.architectures,
        hub=str(recipe.places.hub) if table.hub else "",
    )


def current_script(places: Places) -> str:
    """To be sourced: the environment that is in use."""
    return render_template("environment-current.sh.j2", current=str(places.current))
