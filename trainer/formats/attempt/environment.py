"""The environment of a training: packages, commits, modules, kernels. The first node writes it once per attempt.

`ENVIRONMENT_FILE` in the attempt's folder is an Environment, made by `trainer.formats.attempt.environment_facts`.
`digest_of` identifies it, and `differences` describes how two of them differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping

import msgspec

from trainer.formats.json_text import json_line

#: The file's name in an attempt's folder.
ENVIRONMENT_FILE = "environment.json"
_SHORT = 10


class Package(msgspec.Struct, frozen=True):
    """An installed package."""

    version: str
    digest: str = ""  # of the files and checksums that its installer recorded; empty if unknown
    url: str = ""  # the source of the installation, if it was not a package index
    commit: str = ""  # that it was built from, if its installer recorded it


class Commit(msgspec.Struct, frozen=True):
    """The state of a git working tree."""

    commit: str  # checked out
    difference: str = ""  # digest of the uncommitted changes; empty without any
    folder: str = ""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of an environment, read by its own Python on one node."""

    schema_version: int = 1
    node: str = ""  # of the check
    python: str = ""  # implementation and version
    executable: str = ""  # path of the interpreter
    glibc: str = ""  # name and version of the C library
    driver: str = ""  # version of the NVIDIA driver; empty without one
    cuda: str = ""  # version of the toolkit in CUDA_HOME; empty without one
    torch: dict[str, str] = {}  # its build: `version`, `cuda`, `hip`, `commit`
    packages: dict[str, Package] = {}  # by name
    commits: dict[str, Commit] = {}  # packages that are used from a git working tree, also opsctl and trainer
    modules: tuple[str, ...] = ()  # loaded environment modules, in order
    module_files: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()  # packages that conda has installed: name-version-build
    variables: dict[str, str] = {}  # that decide what is built or how it runs
    kernels: dict[str, str] = {}  # extensions that torch has compiled: path to sha256
    problems: tuple[str, ...] = ()  # facts that could not be read
    took_s: float = 0.0  # duration of the check


#: Fields that do not change the digest: the folder and the observer.
_NOT_COMPARED = frozenset({"schema_version", "node", "executable", "module_files", "problems", "took_s"})
#: Variables that contain only a path.
PLACES = frozenset({"TORCH_EXTENSIONS_DIR", "HF_HOME", "CUDA_HOME", "CUDNN_HOME", "NCCL_HOME", "PYTHONPATH"})


def digest_of(environment: Environment) -> str:
    """Return a digest of the facts that matter. Equal environments in different folders have the same digest."""
    facts = {
        name: msgspec.to_builtins(getattr(environment, name))
        for name in Environment.__struct_fields__
        if name not in _NOT_COMPARED
    }
    for package in facts["packages"].values():
        package.pop("url")
    for commit in facts["commits"].values():
        commit.pop("folder")
    for name in PLACES:
        facts["variables"].pop(name, None)
    return hashlib.sha256(json_line(dict(sorted(facts.items()))).encode()).hexdigest()[:16]


def differences(before: Environment, after: Environment, ignored: frozenset[str] = frozenset()) -> list[str]:
    """Return the differences between two environments, as clauses: `torch 2.6.0 -> 2.7.1`, `module cuda/12.4 is new`.

    ignored: names of fields that are not compared.
    """
    found: list[str] = []
    for name, clauses in _COMPARED.items():
        if name not in ignored:
            found += _changes(clauses(before), clauses(after))
    return found + ([] if "packages" in ignored else _rebuilt(before, after))


def _rebuilt(before: Environment, after: Environment) -> list[str]:
    """Return packages of the same version and commit that have different files."""
    return [
        f"{name} {new.version} has other files"
        for name, new in sorted(after.packages.items())
        if (old := before.packages.get(name)) is not None
        and _package_words(old) == _package_words(new)
        and old.digest
        and new.digest
        and old.digest != new.digest
        and name not in after.commits
    ]


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if old is None:
            yield f"{key} {new} is new"
        elif new is None:
            yield f"{key} {old} is gone"
        else:
            yield f"{key} {old} -> {new}"


def _packages(one: Environment) -> dict[str, str]:
    return {name: _package_words(package) for name, package in one.packages.items() if name not in one.commits}


def _package_words(package: Package) -> str:
    """Return the version, with the commit or digest if two builds have the same version."""
    if package.commit:
        return f"{package.version} at {package.commit[:_SHORT]}"
    return package.version


def _commits(one: Environment) -> dict[str, str]:
    return {
        name: commit.commit[:_SHORT] + (f" with changes {commit.difference[:_SHORT]}" if commit.difference else "")
        for name, commit in one.commits.items()
    }


_COMPARED: dict[str, Callable[[Environment], Mapping[str, str]]] = {
    "python": lambda one: {"Python": one.python} if one.python else {},
    "packages": _packages,
    "commits": _commits,
    "torch": lambda one: {f"torch's {key}": value for key, value in one.torch.items() if key != "version"},
    "modules": lambda one: {f"module {name.partition('/')[0]}": name for name in one.modules},
    "conda": lambda one: {f"conda's {name.rsplit('-', 2)[0]}": name for name in one.conda},
    "cuda": lambda one: {"CUDA": one.cuda} if one.cuda else {},
    "driver": lambda one: {"driver": one.driver} if one.driver else {},
    "glibc": lambda one: {"C library": one.glibc} if one.glibc else {},
    "variables": lambda one: {name: value for name, value in one.variables.items() if name not in PLACES},
    "kernels": lambda one: {f"kernel {path}": digest[:_SHORT] for path, digest in one.kernels.items()},
}
