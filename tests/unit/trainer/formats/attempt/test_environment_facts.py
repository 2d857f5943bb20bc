"""The facts that an environment's own Python reports, compared with what was installed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.tiny_wheel import install, make_venv, make_wheel
from trainer.formats.attempt import environment_facts
from trainer.formats.attempt.environment import Environment, differences, digest_of

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=main")


def told(python: Path, **variables: str) -> Environment:
    """As this Python sees it, with its user's caches empty."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(python.parents[1]), **variables}
    done = subprocess.run(
        [python, "-P", environment_facts.__file__], env=environment, capture_output=True, timeout=60, check=True
    )
    return msgspec.convert(json.loads(done.stdout), Environment)


def git(folder: Path, *words: str) -> str:
    return subprocess.run([*GIT, "-C", folder, *words], check=True, capture_output=True, text=True, timeout=60).stdout


def test_packages_modules_kernels_and_torchs_build_are_told_without_importing_any(tmp_path: Path) -> None:
    """The modules would end the process if they were imported."""
    broken = "raise SystemExit('imported')\n"
    wheels = [make_wheel(tmp_path, "Tiny_Model", "1.2", text=broken), make_wheel(tmp_path, "other", "3", text=broken)]
    python = make_venv(tmp_path / "venv", *wheels)
    torch = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages" / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text(broken)
    (torch / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.7.1+cu126'\ncuda: Optional[str] = '12.6'\n"
    )
    kernel = tmp_path / "extensions" / "adam" / "adam.so"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(b"machine code")
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "version.json").write_text('{"cuda": {"name": "CUDA SDK", "version": "12.6.3"}}')
    found = told(
        python,
        TORCH_EXTENSIONS_DIR=str(tmp_path / "extensions"),
        CUDA_HOME=str(tmp_path / "cuda"),
        LOADEDMODULES="gcc/12.2:cuda/12.6",
        _LMFILES_="/m/gcc/12.2.lua:/m/cuda/12.6.lua",
        TORCH_CUDA_ARCH_LIST="8.0;9.0",
        NCCL_DEBUG="WARN",
        NCCL_API_KEY="secret",
    )
    assert {name: package.version for name, package in found.packages.items()} == {"tiny-model": "1.2", "other": "3"}
    assert found.torch == {"version": "2.7.1+cu126", "cuda": "12.6"}
    assert found.kernels == {"adam/adam.so": hashlib.sha256(b"machine code").hexdigest()[:32]}
    assert (found.modules, found.cuda) == (("gcc/12.2", "cuda/12.6"), "12.6.3")
    assert found.variables["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0" and found.variables["NCCL_DEBUG"] == "WARN"
    assert "NCCL_API_KEY" not in found.variables
    assert found.executable == str(python) and found.problems == ()


def test_the_same_packages_elsewhere_are_the_same_and_another_build_of_one_version_is_not(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "tiny", "1.0")
    first, second = make_venv(tmp_path / "a", wheel), make_venv(tmp_path / "b", wheel)
    before, after = told(first), told(second)
    assert before.packages["tiny"].digest == after.packages["tiny"].digest != ""
    assert digest_of(before) == digest_of(after) and differences(before, after) == []

    install(second, make_wheel(tmp_path / "rebuilt", "tiny", "1.0", text="CHANGED = True\n"))
    assert differences(before, told(second)) == ["tiny 1.0 has other files"]
    install(second, make_wheel(tmp_path, "tiny", "1.1"), make_wheel(tmp_path, "more", "2"))
    assert differences(before, told(second)) == ["more 2 is new", "tiny 1.0 -> 1.1"]
    assert digest_of(before) != digest_of(told(second))


@pytest.fixture
def editable(tmp_path: Path) -> tuple[Path, Path]:
    """Return a package that is used from its git working tree; the tree and a Python that has it."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.py").write_text("LAYERS = 2\n")
    git(tmp_path, "init", "--quiet", str(source))
    git(source, "add", ".")
    git(source, "commit", "--quiet", "-m", "first")
    python = make_venv(tmp_path / "venv", make_wheel(tmp_path, "model", "0.1"))
    (about,) = (tmp_path / "venv").glob("lib/python*/site-packages/model-*.dist-info")
    (about / "direct_url.json").write_text(json.dumps({"url": f"file://{source}", "dir_info": {"editable": True}}))
    return source, python


def test_a_working_tree_is_told_by_its_commit_and_by_what_differs_from_it(editable: tuple[Path, Path]) -> None:
    source, python = editable
    clean = told(python)
    commit = git(source, "rev-parse", "HEAD").strip()
    assert (clean.commits["model"].commit, clean.commits["model"].difference) == (commit, "")

    (source / "model.py").write_text("LAYERS = 3\n")
    edited = told(python)
    assert edited.commits["model"].commit == commit and edited.commits["model"].difference
    (source / "new.py").write_text("HEADS = 4\n")
    (source / "output.log").write_text("iteration 1")  # nothing that could be imported
    more = told(python)
    assert more.commits["model"].difference not in ("", edited.commits["model"].difference)
    (source / "output.log").write_text("iteration 2")
    assert told(python).commits == more.commits
    git(source, "add", ".")
    git(source, "commit", "--quiet", "-m", "second")
    assert told(python).commits["model"].difference == ""
    (line,) = differences(clean, told(python))
    assert line == f"model {commit[:10]} -> {git(source, 'rev-parse', 'HEAD')[:10]}"


def test_what_a_run_writes_into_a_working_tree_makes_it_no_other_environment(editable: tuple[Path, Path]) -> None:
    source, python = editable
    clean = told(python)
    for file in ("first/run.toml", "first/output/checkpoints/zero_to_fp32.py", "elsewhere/.opsctl/owner.json"):
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).write_text("1\n")
    (source / "elsewhere" / "zero_to_fp32.py").write_text("1\n")
    assert told(python).commits == clean.commits
    (source / "first" / "run.toml").write_text("2\n")
    assert told(python).commits == clean.commits
    (source / "beside").mkdir()
    (source / "beside" / "new.py").write_text("1\n")
    assert told(python).commits["model"].difference != ""


def test_a_broken_package_hides_no_other_and_a_password_in_an_address_is_not_told(tmp_path: Path) -> None:
    python = make_venv(tmp_path / "venv", *(make_wheel(tmp_path, name, "1") for name in ("sound", "broken", "private")))
    broken, private = (
        next((tmp_path / "venv").glob(f"lib/python*/site-packages/{name}-*.dist-info"))
        for name in ("broken", "private")
    )
    (broken / "direct_url.json").write_text("{half")
    vcs: dict[str, Any] = {
        "url": "https://me:hunter2@x@host/p.git?token=hunter2",
        "vcs_info": {"vcs": "git", "commit_id": "abc123"},
    }
    (private / "direct_url.json").write_text(json.dumps(vcs))
    found = told(python)
    assert set(found.packages) == {"sound", "private"}
    assert found.packages["private"].commit == "abc123" and found.packages["private"].url == "https://host/p.git"
    assert len(found.problems) == 1 and "hunter2" not in repr(found)
