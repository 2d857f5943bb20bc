"""`python -m release VERSION`, in a clean checkout: see release.making."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

from release.building import from_index
from release.making import release
from release.refusal import Refused

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: make release VERSION=x.y.z\n")
        return 2
    try:
        made = release(ROOT, arguments[0], datetime.datetime.now(datetime.UTC).date(), from_index, _say)
    except Refused as refused:
        sys.stderr.write(f"no release: {refused}\n")
        return 1
    for path in made.files:
        _say(str(path.relative_to(ROOT)))
    _say(f"{made.tag} is on {made.branch}; nothing was pushed. What is left:")
    _say(f"  git push origin {made.branch} {made.tag}")
    _say(f"  uv publish dist/{arguments[0]}/opsctl_slurm-*")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
