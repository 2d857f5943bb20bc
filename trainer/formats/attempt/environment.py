"""What a training was started with: packages, commits, modules, kernels. Written once in an attempt, by its first node.

`ENVIRONMENT_FILE` in the attempt's folder is an Environment, made by `trainer.formats.attempt.environment_facts`.
`digest_of` identifies it, and `differences` describes how two of them differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from trainer.formats.json_text import json_line

#: Its name in an attempt's folder.
ENVIRONMENT_FILE = "environment.json"
_SHORT = 10


class Package(msgspec.Struct, frozen=True):
    """One installed package."""

    version: Annotated[str, Meta(description="As its metadata says.")]
    digest: Annotated[
        str, Meta(description="Of the files and checksums that its installer recorded; empty where none is known.")
    ] = ""
    url: Annotated[str, Meta(description="What it was installed from, where that was no index.")] = ""
    commit: Annotated[str, Meta(description="The commit that it was built from, where the installer knew.")] = ""


class Commit(msgspec.Struct, frozen=True):
    """What of a git working tree is used as it lies there."""

    commit: Annotated[str, Meta(description="That is checked out.")]
    difference: Annotated[str, Meta(description="Digest of what differs from it; empty where nothing does.")] = ""
    folder: Annotated[str, Meta(description="The working tree.")] = ""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What is in an environment, as its own Python on one node saw it."""

    schema_version: Annotated[int, Meta(description="1.")] = 1
    node: Annotated[str, Meta(description="Where it was looked at.")] = ""
    python: Annotated[str, Meta(description="Implementation and version.")] = ""
    executable: Annotated[str, Meta(description="Path of the interpreter.")] = ""
    glibc: Annotated[str, Meta(description="Name and version of the C library.")] = ""
    driver: Annotated[str, Meta(description="Version of the NVIDIA driver; empty without one.")] = ""
    cuda: Annotated[str, Meta(description="Version of the toolkit in CUDA_HOME; empty without one.")] = ""
    torch: Annotated[dict[str, str], Meta(description="Of its build: `version`, `cuda`, `hip`, `commit`.")] = {}
    packages: Annotated[dict[str, Package], Meta(description="Name to package.")] = {}
    edited: Annotated[
        dict[str, dict[str, str]] | None,
        Meta(description="Name to file that is not as installed, to its sha256, empty if gone; null: files not read."),
    ] = None
    commits: Annotated[
        dict[str, Commit], Meta(description="Packages that are used from a git working tree, opsctl and trainer too.")
    ] = {}
    modules: Annotated[tuple[str, ...], Meta(description="Loaded environment modules, in order.")] = ()
    module_files: Annotated[tuple[str, ...], Meta(description="Their files.")] = ()
    conda: Annotated[tuple[str, ...], Meta(description="What conda has installed: name-version-build.")] = ()
    variables: Annotated[dict[str, str], Meta(description="Those that decide what is built or how it runs.")] = {}
    kernels: Annotated[dict[str, str], Meta(description="Extensions that torch has compiled: path to sha256.")] = {}
    problems: Annotated[tuple[str, ...], Meta(description="What could not be seen.")] = ()
    took_s: Annotated[float, Meta(description="Seconds that the look took.")] = 0.0


#: What does not make it another environment: where it is stored, who looked, and what only a look at all files tells.
_NOT_COMPARED = frozenset({"schema_version", "node", "executable", "module_files", "edited", "problems", "took_s"})
#: Variables that say only where something lies.
PLACES = frozenset({"TORCH_EXTENSIONS_DIR", "HF_HOME", "CUDA_HOME", "CUDNN_HOME", "NCCL_HOME", "PYTHONPATH"})
#: What only the nodes have, or that is another on a login node by right.
OF_NODES = frozenset({"driver", "kernels", "glibc", "variables", "cuda"})


def digest_of(environment: Environment) -> str:
    """Of what counts: two that differ only in where they lie have one."""
    said = {
        name: msgspec.to_builtins(getattr(environment, name))
        for name in Environment.__struct_fields__
        if name not in _NOT_COMPARED
    }
    for package in said["packages"].values():
        package.pop("url")
    for commit in said["commits"].values():
        commit.pop("folder")
    for name in PLACES:
        said["variables"].pop(name, None)
    return hashlib.sha256(json_line(dict(sorted(said.items()))).encode()).hexdigest()[:16]


def differences(before: Environment, after: Environment, ignored: frozenset[str] = frozenset()) -> list[str]:
    """What of `after` is not as in `before`, a clause each: `torch 2.6.0 -> 2.7.1`, `module cuda/12.4 is new`.

    ignored: names of fields that are passed over.
    """
    found: list[str] = []
    for name, told in _TOLD.items():
        if name not in ignored:
            found += _changes(told(before), told(after))
    return found + ([] if "packages" in ignored else _rebuilt(before, after))


def _rebuilt(before: Environment, after: Environment) -> list[str]:
    """Packages of one version and commit whose files are others."""
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
    """The version; with its commit, or what tells two builds of one version apart, where there is more to say."""
    if package.commit:
        return f"{package.version} at {package.commit[:_SHORT]}"
    return package.version


def _commits(one: Environment) -> dict[str, str]:
    return {
        name: commit.commit[:_SHORT] + (f" with changes {commit.difference[:_SHORT]}" if commit.difference else "")
        for name, commit in one.commits.items()
    }


_TOLD: dict[str, Callable[[Environment], Mapping[str, str]]] = {
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
