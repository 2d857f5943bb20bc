"""Test how much `opsctl status` imports, which is most of what it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.monitoring.run_folder import troubled_run

#: Modules of ours. Lower it when some go.
MOST = 150
_COUNT = """
import sys
from opsctl.cli import main
try:
    main(["status"])
except SystemExit:
    print(sum(name.split(".")[0] in ("opsctl", "trainer") for name in sys.modules), file=sys.stderr)
"""


def test_status_imports_few_modules_of_ours(tmp_path: Path) -> None:
    troubled_run(tmp_path)
    done = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.stdout.startswith("tiny "), done.stderr
    assert int(done.stderr.split()[-1]) <= MOST
