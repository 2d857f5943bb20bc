"""What the environment may say beside --deterministic."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("variable", "value", "refusal"),
    [
        ("CUBLAS_WORKSPACE_CONFIG", ":16:8", ""),
        ("CUBLAS_WORKSPACE_CONFIG", ":0:0", "CUBLAS_WORKSPACE_CONFIG=:0:0: set it to :4096:8 or :16:8"),
        ("NCCL_ALGO", "Ring", ""),
        ("NCCL_ALGO", "^nvls", ""),
        ("NCCL_ALGO", "Ring,NVLS", "NCCL_ALGO=Ring,NVLS: NVLS sums in the order of arrival"),
    ],
)
def test_an_environment_that_says_the_contrary_is_refused_by_name(variable: str, value: str, refusal: str) -> None:
    code = (
        "import os\nfrom trainer.parallel.determinism import be_deterministic\n"
        "try: be_deterministic()\nexcept ValueError as error: print(error)\n"
        f"else: print(os.environ[{variable!r}] == {value!r})"
    )
    environment = {**os.environ, variable: value, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert refusal in done.stdout if refusal else done.stdout == "True\n"
