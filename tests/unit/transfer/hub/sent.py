"""A run with something to send, and this process as the one that sends it; no wait of ours takes time."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from opsctl.run.config.file_kinds import KINDS
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import HubTable
from opsctl.transfer.hub.hub_errors import RetryPolicy
from opsctl.transfer.hub.place import NOTE, Outcome
from opsctl.transfer.hub.settings import HubSettings
from opsctl.transfer.hub.sync import sync
from tests.hub_server import TOKEN, Hub, hub_server
from tests.tiny_run import MANIFEST, write_run
from tests.unit.cli.called import opsctl

REPO = "lab/run"


@dataclass
class Desk:
    """The run, its hub, and what was waited."""

    hub: Hub
    folder: Path
    table: HubTable = field(default_factory=lambda: HubTable(repo=REPO))
    waited: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.folder / "run" / "output")

    def asks(self, **table: object) -> Desk:
        """The same with other keys of [hub]."""
        self.table = msgspec.convert({**msgspec.to_builtins(self.table), **table}, HubTable)
        return self

    def write(self, path: str, content: bytes) -> Path:
        place = self.paths.output / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return place

    def sync(self, kinds: Sequence[str] = KINDS, most_s: float = 600.0) -> Outcome:
        patience = RetryPolicy(most_s, sleep=self.waited.append, say=self.said.append)
        return sync(self.paths, "tiny", HubSettings(self.table), kinds, patience)

    def sent(self, *kinds: str) -> list[str]:
        """Paths of the requests of these kinds since the last `fresh`."""
        return [one.path for one in self.hub.asked(*kinds)]

    def fresh(self) -> None:
        self.hub.requests.clear()

    def downloaded(self, revision: str = "main") -> dict[str, bytes]:
        """Return what the client's own download of the repository has of the run's files, by name."""
        from huggingface_hub import snapshot_download

        cache = self.folder / "cache"
        found = snapshot_download(
            REPO, revision=revision, endpoint=self.hub.endpoint, token=TOKEN, cache_dir=cache, force_download=True
        )
        root = Path(found)
        there = {str(one.relative_to(root)): one.read_bytes() for one in root.rglob("*") if one.is_file()}
        return {name: content for name, content in there.items() if name != NOTE}

    def files_there(self) -> set[str]:
        """Return what main has of the run's own files."""
        return set(self.hub.files(REPO)) - {NOTE}

    def opsctl(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command in this process, with the variables of one of its own."""
        command, out, err = self.words(*words)[3:], io.StringIO(), io.StringIO()
        with (
            patch.dict(os.environ, self.environment(**variables), clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = opsctl(*command)
        return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())

    def process(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the command in a process of its own."""
        return subprocess.run(
            self.words(*words), env=self.environment(**variables), text=True, capture_output=True, timeout=60
        )

    def words(self, *words: str) -> list[str]:
        run_file = str(self.folder / "run" / "run.toml")
        return [sys.executable, "-m", "opsctl", "hub", *words, "--run", run_file]

    def environment(self, **variables: str) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "OPSCTL"))}
        own = {"XDG_STATE_HOME": str(self.folder / "state"), "XDG_CONFIG_HOME": str(self.folder / "config")}
        return {**plain, **self.hub.environment(self.folder / "home"), **own, **variables}

    def checkpoint(self, iteration: int, files: dict[str, bytes]) -> Path:
        """A complete checkpoint of these files; what was there under its name is swapped away whole."""
        import xxhash

        folder = self.paths.checkpoints / f"global_step{iteration}"
        beside = folder.with_name(f".made-{folder.name}")
        beside.mkdir(parents=True)
        for name, content in files.items():
            (beside / name).write_bytes(content)
        said = {
            name: {"bytes": len(content), "xxh64": xxhash.xxh64(content).hexdigest()} for name, content in files.items()
        }
        progress = {"iteration": iteration, "consumed_train_samples": 8 * iteration, "consumed_train_tokens": 0}
        (beside / "manifest.json").write_text(json.dumps({**MANIFEST, **progress, "files": said}))
        if folder.exists():
            folder.rename(folder.with_name(f".old-{folder.name}"))
        beside.rename(folder)
        return folder


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A run with logs and curves, and an empty hub on which this account is logged in."""
    from huggingface_hub import constants, set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    with hub_server(tmp_path / "hub") as hub:
        for name, value in hub.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        of_the_client: tuple[tuple[str, object], ...] = (
            ("ENDPOINT", hub.endpoint),
            ("HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"),
            ("HF_HUB_DISABLE_XET", True),
            ("HF_HUB_DISABLE_TELEMETRY", True),
            ("HF_TOKEN_PATH", str(tmp_path / "home" / "token")),
        )
        for name, constant in of_the_client:
            monkeypatch.setattr(constants, name, constant)  # read at the import, long ago
        desk = Desk(hub, tmp_path)
        write_run(tmp_path / "run")
        with (tmp_path / "run" / "run.toml").open("a") as file:
            file.write(f'\n[hub]\nrepo = "{REPO}"\ncheckpoints = "folder"\n')
        desk.write("logs/main_log.txt", b"first line\nsecond line\n")
        desk.write("tensorboard/events.out.tfevents.1.node", bytes(range(256)) * 20)
        yield desk
        set_client_factory(default_client_factory)
