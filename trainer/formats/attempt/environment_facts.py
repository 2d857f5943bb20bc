"""Print the Python environment that runs this program as JSON: packages, commits, modules, kernels, libraries.

    PYTHON -P trainer/formats/attempt/environment_facts.py

The program needs only the standard library, so the Python of any environment can run it by its path. It imports no
package that it reports: torch's build is read from its files. `environment` reads the output back.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Variables that decide what is built or how it runs. None of them holds a secret.
VARIABLES = (
    *("CUDA_HOME", "CUDNN_HOME", "NCCL_HOME", "TORCH_CUDA_ARCH_LIST", "TORCH_EXTENSIONS_DIR", "OMP_NUM_THREADS"),
    *("HF_HOME", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "PYTHONPATH", "LD_PRELOAD"),
)
_PREFIXES = ("NCCL_", "DS_BUILD_", "FI_", "UCX_")
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|KEY|CREDENTIAL", re.IGNORECASE)
#: Files that the installer writes next to the package, different in every installation.
_NOT_CONTENTS = ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "RECORD", "RECORD.jws")
_GIT_S = 10.0
_LARGEST_KERNEL_BYTES = 256 << 20
_MOST_KERNELS = 500
#: Untracked files that count: only sources can be imported.
_SOURCES = (b".py", b".pyi", b".toml", b".c", b".cc", b".cpp", b".cu", b".cuh", b".h", b".j2")
_MOST_UNTRACKED = 1_000
#: Files that mark a run's folder or output. Scripts and run files there change while the run continues.
_OF_A_RUN = ("run.toml", ".opsctl")


def facts() -> dict[str, Any]:
    """Return the fields of `environment.Environment`. What cannot be read is listed in `problems`."""
    began = time.monotonic()
    problems: list[str] = []
    packages, editable = _packages(problems)
    return {
        "schema_version": 1,
        "node": os.environ.get("SLURMD_NODENAME") or platform.node(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "glibc": " ".join(platform.libc_ver()).strip(),
        "driver": driver_version(),
        "cuda": _cuda_toolkit(),
        "torch": _torch(),
        "packages": packages,
        "commits": _commits({**editable, **_own_sources()}, problems),
        "modules": [one for one in os.environ.get("LOADEDMODULES", "").split(":") if one],
        "module_files": [one for one in os.environ.get("_LMFILES_", "").split(":") if one],
        "conda": sorted(path.stem for path in Path(sys.prefix, "conda-meta").glob("*.json")),
        "variables": _variables(),
        "kernels": _kernels(extensions_folder(), problems),
        "problems": problems,
        "took_s": round(time.monotonic() - began, 3),
    }


def extensions_folder() -> Path:
    """Return the folder where torch stores the extensions that it compiles at first use."""
    named = os.environ.get("TORCH_EXTENSIONS_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(named) if named else Path(cache) / "torch_extensions"


def _packages(problems: list[str]) -> tuple[dict[str, dict[str, str]], dict[str, Path]]:
    """Return name -> version, digest and origin of each package, and the folders of packages that are links."""
    found: dict[str, dict[str, str]] = {}
    editable: dict[str, Path] = {}
    for one in importlib.metadata.distributions():
        try:
            name = re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()
            if name in found:
                continue  # Python imports the first one on the path
            origin = json.loads(one.read_text("direct_url.json") or "{}")
            url = _without_password(origin.get("url", ""))
            found[name] = {
                "version": one.version,
                "digest": _digest_of(one.read_text("RECORD") or ""),
                "url": url,
                "commit": origin.get("vcs_info", {}).get("commit_id", ""),
            }
            if origin.get("dir_info", {}).get("editable") and url.startswith("file://"):
                editable[name] = Path(url.removeprefix("file://"))
        except Exception as error:  # a broken package must not hide the others
            problems.append(f"a package cannot be read: {type(error).__name__}: {error}")
    return dict(sorted(found.items())), editable


def _without_password(url: str) -> str:
    """Remove the user name, password and query from a URL. A password may contain `@`; a query may hold a token."""
    return re.sub(r"//[^/]*@", "//", url).partition("?")[0]


def _digest_of(record: str) -> str:
    """Return a digest of a package's RECORD that does not depend on its folder. The files are not read."""
    lines = []
    for line in record.splitlines():
        path, _, digest = line.rpartition(",")[0].rpartition(",sha256=")
        if path and not path.startswith(("..", "/")) and not path.strip('"').endswith((*_NOT_CONTENTS, ".pyc")):
            lines.append(f"{path},sha256={digest}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16] if lines else ""


def _own_sources() -> dict[str, Path]:
    """Return the folders from which `opsctl` and `trainer` are imported, if they are not installed copies."""
    found = {}
    for name in ("opsctl", "trainer"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin and "site-packages" not in spec.origin:
            found[name] = Path(spec.origin).parent
    return found


def _commits(folders: dict[str, Path], problems: list[str]) -> dict[str, dict[str, str]]:
    """Return name -> commit and digest of the uncommitted changes, for folders under git."""
    known: dict[str, dict[str, str]] = {}
    found = {}
    for name, folder in sorted(folders.items()):
        top = _git(folder, "rev-parse", "--show-toplevel", problems=problems).decode(errors="replace").strip()
        if top and top not in known:
            known[top] = _state_of(Path(top), problems)
        if top and known[top]["commit"]:
            found[name] = known[top]
    return found


def _state_of(top: Path, problems: list[str]) -> dict[str, str]:
    commit = _git(top, "rev-parse", "HEAD", problems=problems).decode(errors="replace").strip()
    changed = _git(top, "diff", "--binary", "HEAD", problems=problems)
    listed = _git(top, "ls-files", "--others", "--exclude-standard", "-z", problems=problems)
    names = [name for name in listed.split(b"\0") if name.endswith(_SOURCES)]
    runs = _runs_among(top, names)
    names = [name for name in names if runs.isdisjoint(Path(os.fsdecode(name)).parents)]
    difference = hashlib.sha256(changed)
    for name in names[:_MOST_UNTRACKED]:
        difference.update(name + b"\0" + (_sha256(top / os.fsdecode(name)) or "").encode())
    return {"commit": commit, "difference": difference.hexdigest()[:16] if changed or names else "", "folder": str(top)}


def _runs_among(top: Path, names: list[bytes]) -> set[Path]:
    """Return the run folders that contain files with these names. Both are relative to `top`."""
    folders = {folder for name in names for folder in Path(os.fsdecode(name)).parents} - {Path()}
    return {folder for folder in folders if any((top / folder / mark).exists() for mark in _OF_A_RUN)}


def _git(folder: Path, *words: str, problems: list[str]) -> bytes:
    """Return git's output; empty without git, without a repository, or in another owner's repository."""
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_S, check=False, env=environment
        )
    except FileNotFoundError:
        return b""
    except (OSError, subprocess.TimeoutExpired) as error:
        problems.append(f"git in {folder}: {type(error).__name__}")
        return b""
    return done.stdout if done.returncode == 0 else b""


def _torch() -> dict[str, str]:
    """Return version, CUDA and commit of torch's build, read from its file; empty without torch."""
    spec = importlib.util.find_spec("torch")
    places = spec.submodule_search_locations if spec is not None else None
    try:
        tree = ast.parse((Path(places[0]) / "version.py").read_text()) if places else ast.Module([], [])
    except (OSError, SyntaxError):
        return {}
    constants: dict[str, str] = {}
    for line in tree.body:
        if isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(line.value, ast.Constant):
            target = line.targets[0] if isinstance(line, ast.Assign) else line.target
            if isinstance(target, ast.Name) and isinstance(line.value.value, str):
                constants[target.id] = line.value.value
    wanted = {"version": "__version__", "cuda": "cuda", "hip": "hip", "commit": "git_version"}
    return {ours: constants[theirs] for ours, theirs in wanted.items() if theirs in constants}


def driver_version() -> str:
    """Return the version of the loaded NVIDIA driver; empty without one."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r"\s(\d+\.[\d.]+)\s", text)
    return match[1] if match else ""


def _cuda_toolkit() -> str:
    """Return the version of the toolkit in CUDA_HOME; empty without one."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    try:
        found = json.loads(Path(home, "version.json").read_text(encoding="utf-8")) if home else {}
        return str(found["cuda"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _variables() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name in VARIABLES or name.startswith(_PREFIXES)) and not _SECRET.search(name)
    }


def _kernels(folder: Path, problems: list[str]) -> dict[str, str]:
    """Return the sha256 of each compiled extension, by its path in `folder`."""
    found = {}
    for number, path in enumerate(_libraries(folder)):
        if number == _MOST_KERNELS:
            problems.append(f"{folder}: more than {_MOST_KERNELS} compiled extensions, the rest was not read")
            break
        digest = _sha256(path)
        if digest is None:
            problems.append(f"{path}: cannot be read")
        else:
            found[str(path.relative_to(folder))] = digest
    return found


def _libraries(folder: Path) -> Iterator[Path]:
    return iter(sorted(path for path in folder.rglob("*.so") if path.is_file()) if folder.is_dir() else ())


def _sha256(path: Path) -> str | None:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_KERNEL_BYTES:
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:32]
    except OSError:
        return None


if __name__ == "__main__":
    print(json.dumps(facts()))
