from __future__ import annotations

import json
import os
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
