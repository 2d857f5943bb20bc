from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.unit.cli.called import Answer, forked


def opsctl(*words: str, cache: Path) -> Answer:
    return forked(cache, "kernels", *words, environment={**os.environ, "OPSCTL_KERNELS_CACHE": str(cache)})


def test_several_architectures_follow_one_word_and_each_may_have_its_own(tmp_path: Path) -> None:
    for words in (("--arch", "7.0", "9.0"), ("--arch", "7.0", "--arch", "9.0")):
        done = opsctl("list", "--json", *words, cache=tmp_path)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["kernels"]
        assert [one["name"] for one in found["artifacts"] if one["name"].startswith("cuda")] == [
            "cuda-sm_70",
            "cuda-sm_90",
        ]
        assert found["folders"] == [str(tmp_path)]


def test_a_check_of_what_nobody_has_built_fails(tmp_path: Path) -> None:
    done = opsctl("check", "--arch", "8.0", cache=tmp_path)
    assert done.returncode == 1
    assert "cuda-sm_80" in done.stdout and "missing" in done.stdout


def test_a_source_tree_that_is_not_installed_lists_its_kernels(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    # PYTHONPATH reads no .pth file, so this Python has every package except an installed opsctl.
    packages = {"PYTHONPATH": sysconfig.get_path("purelib"), "OPSCTL_KERNELS_CACHE": str(tmp_path)}
    done = subprocess.run(
        [tmp_path / "venv/bin/python", "-m", "opsctl", "kernels", "list"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, **packages},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "cuda-sm_90" in done.stdout
