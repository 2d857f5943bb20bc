"""What is in an environment as lines that an installer takes: the same environment, the same text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from opsctl.run.environments.checking import edited_words
from trainer.formats.attempt.environment import PLACES, Environment, Package

_HEAD = "# What was installed when this was written; comments say what an installer cannot put back."


def lock_text(environment: Environment, wheels: Path | None = None) -> str:
    """A requirements file with every package pinned, by its hash where its wheel is among `wheels`."""
    hashes = _hashes(wheels, environment.packages.items()) if wheels is not None and wheels.is_dir() else {}
    lines = [_HEAD, *(f"# {line}" for line in _not_installable(environment))]
    for name, package in sorted(environment.packages.items()):
        pinned = _pinned(name, package, environment)
        lines.append(f"{pinned} --hash=sha256:{hashes[name]}" if name in hashes and "==" in pinned else pinned)
    return "\n".join(lines) + "\n"


def _pinned(name: str, package: Package, environment: Environment) -> str:
    if name in environment.commits:
        return f"# {name} {package.version} is used as it lies in {environment.commits[name].folder}"
    if package.commit:
        return f"{name} @ git+{package.url.removeprefix('git+')}@{package.commit}"
    return f"{name}=={package.version}"


def _not_installable(environment: Environment) -> Iterator[str]:
    yield environment.python
    for name, value in (("C library", environment.glibc), ("CUDA", environment.cuda), ("driver", environment.driver)):
        if value:
            yield f"{name} {value}"
    for key, value in sorted(environment.torch.items()):
        yield f"torch's {key} {value}"
    for name, commit in sorted(environment.commits.items()):
        changed = f", with changes {commit.difference}" if commit.difference else ""
        yield f"{name} at commit {commit.commit}{changed}"
    for name, files in (environment.edited or {}).items():
        yield from edited_words(environment, name, files)
    yield from (f"module {one}" for one in environment.modules)
    yield from (f"conda {one}" for one in environment.conda)
    for name, value in sorted(environment.variables.items()):
        if name not in PLACES:
            yield f"{name}={value}"
    yield from (f"kernel {path} sha256:{digest}" for path, digest in sorted(environment.kernels.items()))


def _hashes(wheels: Path, packages: Iterable[tuple[str, Package]]) -> dict[str, str]:
    """Name -> sha256 of its only wheel of that version."""
    found: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(wheels.glob("*.whl")):
        name, version, *_ = path.name.split("-")
        found.setdefault((re.sub(r"[-_.]+", "-", name).lower(), version), []).append(path)
    ours = {name: found.get((name, package.version), []) for name, package in packages}
    return {name: _sha256(paths[0]) for name, paths in ours.items() if len(paths) == 1}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
