"""Records what a release's commands say: `python -m tests.contract.record [--prefix DIR] [RELEASE]`, as root.

A scene is made on a cluster of that release, every sentence of the contract is asked of it, and the commands that this
ran, with what they said, become `recorded/RELEASE.json`. Only true sentences are recorded.
"""

from __future__ import annotations

import argparse
import getpass
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from unittest import mock

from opsctl.slurm import backends, commands
from opsctl.slurm.process import Answer, run_slurm
from opsctl.slurm.rows import ROW_END
from tests.contract.scene import make_scene
from tests.contract.sentences import SENTENCES
from tests.contract.slurms import Slurm, running

RECORDED = Path(__file__).parent / "recorded"


def key_of(command: Sequence[str], stdin: str | None) -> str:
    """Return what a command is known by: its words, and what it was handed."""
    return json.dumps([*command, stdin], ensure_ascii=True)


def record(prefix: str | None, release: str | None) -> Path:
    """Make the scene, ask everything, write it down."""
    answers: dict[str, dict[str, object]] = {}

    def noting(
        command: Sequence[str],
        environment: dict[str, str],
        timeout_s: float,
        stdin: str | None = None,
        take: Callable[[bytes], None] | None = None,
    ) -> Answer:
        answer = run_slurm(command, environment, timeout_s, stdin)
        if take is not None:
            take(answer.stdout.encode())
        answers[key_of(command, stdin)] = asdict(answer)
        return answer

    with running(Slurm(prefix)) as cluster:
        scene = make_scene(cluster)
        client = backends.client_for(cluster.cluster, 120)
        known_end = mock.patch.object(commands, "new_row_end", return_value=ROW_END)
        with mock.patch.object(commands, "run_slurm", noting), known_end:
            for sentence in SENTENCES:
                sentence(client, scene)
        version = cluster.run("sinfo", "--version").stdout.split()[-1]
        text = json.dumps({"slurm": version, "scene": asdict(scene), "answers": answers}, indent=1, ensure_ascii=True)
        name = release or ".".join(version.split(".")[:2])
        # No part of what is proven, and no other user's business.
        text = text.replace(str(cluster.folder), "/cluster").replace(getpass.getuser(), scene.user)
    path = RECORDED / f"{name}.json"
    path.write_text(text + "\n")
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release", nargs="?", help="name of the record [default: as Slurm says]")
    parser.add_argument("--prefix", help="as of local-cluster up --slurm-prefix [default: this machine's Slurm]")
    given = parser.parse_args()
    print(record(given.prefix, given.release))
