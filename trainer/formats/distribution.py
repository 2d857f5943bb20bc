"""The name of the installed distribution, and the commands to install its extras.

The package index has another project named `opsctl`, so the distribution has a different name. The command and the
imported packages keep theirs.
"""

from __future__ import annotations

import re
import shlex
import sys
from importlib.machinery import PathFinder
from pathlib import Path

NAME = "opsctl-slurm"
#: The distribution's name in installations of early versions, and that of the other project.
FORMER_NAME = "opsctl"
_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)


def version() -> str:
    """Return the installed version, or the checkout's if it is not installed; "unknown" without either."""
    return _installed(NAME) or _of_checkout() or "unknown"


def former_version() -> str | None:
    """Return the version of a distribution `opsctl` that is also installed; None without one."""
    return _installed(FORMER_NAME)


def requirement(*extras: str) -> str:
    """Return the words after `pip install` that add `extras` to this installation."""
    if _installed(NAME) is None and _of_checkout() is not None:
        return f"-e '{_PROJECT.parent}[{','.join(extras)}]'"
    return f"'{NAME}[{','.join(extras)}]'"


def install_command(*extras: str) -> str:
    """Return the command that adds `extras` to this installation."""
    return f"{pip_command('install')} {requirement(*extras)}"


def pip_command(verb: str) -> str:
    """Return `pip VERB` for this Python, or uv's command in an environment without pip."""
    python = shlex.quote(sys.executable)
    # importlib.util.find_spec("pip") makes setuptools' finder return the standard library's distutils afterwards.
    return f"{python} -m pip {verb}" if PathFinder.find_spec("pip") is not None else f"uv pip {verb} --python {python}"


def _installed(name: str) -> str | None:
    from importlib import metadata  # importing it takes longer than most commands need

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _of_checkout() -> str | None:
    try:
        found = _VERSION.search(_PROJECT.read_text())
    except OSError:
        return None
    return found[1] if found and f'name = "{NAME}"' in found.string else None
