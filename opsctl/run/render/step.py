"""The step script of a revision: what srun starts once on each node. Pure."""

from __future__ import annotations

from opsctl.core.errors import RunFileError
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.render.templates import render_template

#: The kernel takes 128 KiB for one variable, its name and a little more included.
LARGEST_BYTES = 120 * 1024


def step_script(run: ExpandedRun) -> str:
    """The script of a run. It takes the launcher's command as its arguments, and from its environment
    OPSCTL_ATTEMPT_FOLDER, where the node's output goes. Raises RunFileError for more than can be handed to srun.
    """
    text = render_template("step.sh.j2", environment=run.file.run.environment, env=sorted(run.file.env.items()))
    size = len(text.encode())
    if size > LARGEST_BYTES:
        raise RunFileError(
            f"{run.path}: [env] makes a step script of {size:,} bytes, more than the {LARGEST_BYTES:,} that a process "
            "can be given: set large values in the environment script"
        )
    return text
