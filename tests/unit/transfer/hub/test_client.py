from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.unit.transfer.hub.sent import Desk, desk

__all__ = ["desk"]
IMPORTS = "from opsctl.transfer.hub.client import import_client; import_client()"
SAYS = "from huggingface_hub import constants; print(constants.HF_HUB_DISABLE_XET)"


@pytest.mark.parametrize("imported", [True, False])
def test_xet_is_off_or_nothing_is_sent(imported: bool) -> None:
    first = "import huggingface_hub.constants; " if imported else ""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    words = [sys.executable, "-c", f"{first}{IMPORTS}; {SAYS}"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    if imported:
        assert done.returncode == 1 and "HF_HUB_DISABLE_XET=1" in done.stderr
    else:
        assert done.stdout == "True\n"


def test_a_sync_with_nothing_to_do_does_not_even_load_the_client(desk: Desk) -> None:
    desk.sync()
    desk.fresh()
    code = (
        "import sys; from opsctl.cli import main\n"
        "try: main(['hub', 'sync', '--run', sys.argv[1]])\n"
        "finally: print(sorted({'huggingface_hub', 'httpx2', 'httpx'} & set(sys.modules)))"
    )
    words = [sys.executable, "-c", code, str(desk.folder / "run" / "run.toml")]
    done = subprocess.run(words, env=desk.environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout == "tiny: nothing new\n[]\n", done.stderr
    assert desk.hub.requests == []
