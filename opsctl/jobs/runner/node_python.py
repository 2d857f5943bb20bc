"""Which Python runs on the nodes."""

from __future__ import annotations

import sys


def launchers_python(environment: str | None) -> tuple[str, ...]:
    """The interpreter on the nodes: what an environment script calls python, without one what runs opsctl.

    Never with modules of the working folder, which others than the job's owner may write.
    """
    return ("python" if environment else sys.executable, "-P")
