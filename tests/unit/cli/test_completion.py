"""Tab, in the shells themselves."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from opsctl.cli import COMMANDS, root
from tests.tiny_run import write_run
from tests.unit.cli.called import forked

BIN = Path(sys.executable).parent


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPSCTL_", "SLURM_", "BASH"))}
    state = {"XDG_STATE_HOME": str(folder / ".state"), "XDG_CACHE_HOME": str(folder / ".cache"), "HOME": str(folder)}
    return {**kept, **state, "PATH": f"{BIN}:/usr/bin:/bin", "TERM": "dumb", "OPSCTL_COMPLETION_SECONDS": "15", **more}


def offered(folder: Path, *words: str, **more: str) -> list[str]:
    """Return what is offered for the last of the words, and nothing must be said beside it."""
    asked = {"_OPSCTL_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["opsctl", *words])}
    asked["COMP_CWORD"] = str(len(words))
    done = forked(folder, environment=environment(folder, **asked, **more))
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return where a run called `mine` is, with two checkpoints."""
    run_file = write_run(tmp_path / "mine")
    for iteration in (10, 200):
        (run_file.parent / "output" / "checkpoints" / f"global_step{iteration}").mkdir(parents=True)
    return tmp_path


def pressed(folder: Path, shell: list[str], set_up: str, line: str) -> str:
    """Return what stands on the command line of an interactive shell after `line` and Tab."""
    ours, its = pty.openpty()
    child = subprocess.Popen(
        shell, cwd=folder, env=environment(folder), stdin=its, stdout=its, stderr=its, start_new_session=True
    )
    os.close(its)

    def read_until(mark: bytes, seconds: float) -> bytes:
        out, end = b"", time.monotonic() + seconds
        while mark not in out and time.monotonic() < end:
            if select.select([ours], [], [], 0.1)[0]:
                out += os.read(ours, 65536)
        return out

    try:
        os.write(ours, f"{set_up}; echo re''ady\n".encode())
        assert b"ready" in read_until(b"ready", 30)
        os.write(ours, f"{line}\t".encode())
        return read_until(b"mine", 20).decode(errors="replace")
    finally:
        child.kill()
        child.wait()
        os.close(ours)


@pytest.mark.parametrize(
    ("shell", "set_up"),
    [
        (["bash", "--norc", "--noprofile", "-i"], "source <(opsctl completion bash)"),
        (["zsh", "-f", "-i"], "autoload -U compinit && compinit -u -D && source <(opsctl completion zsh)"),
    ],
    ids=["bash", "zsh"],
)
def test_tab_puts_in_the_run(folder: Path, shell: list[str], set_up: str) -> None:
    if shutil.which(shell[0]) is None:
        pytest.skip(f"no {shell[0]} here: apt-get install {shell[0]}")
    assert "mine" in pressed(folder, shell, set_up, "opsctl status --run mi")


def test_fish_offers_the_run(folder: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("no fish here: apt-get install fish")
    asking = "opsctl completion fish | source; complete -C 'opsctl status --run mi'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", asking], cwd=folder, env=environment(folder), capture_output=True, timeout=60
    )
    assert done.stdout.decode().split()[:1] == ["mine"], done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["stat"], ["status"]),
        (["status", ""], ["mine"]),
        (["checkpoints", "show", "--run", "mine", "--step", ""], ["200", "10"]),
        (["status", "--fre"], ["--fresh"]),
        (["submit", "--after", ""], ["auto"]),
        (["kill-switch", "tri"], ["trigger"]),
        (["exclude", "add", "n"], []),
        (["no-such-command", ""], ["mine"]),
    ],
)
def test_what_is_offered(folder: Path, words: list[str], expected: list[str]) -> None:
    if words[0] == "no-such-command":
        assert offered(folder, *words) != expected, "nothing is known of it"
        return
    assert offered(folder, *words) == expected


def test_nothing_is_said_and_nothing_waited_for_where_slurm_does_not_answer(folder: Path) -> None:
    hanging = folder / "bin"
    hanging.mkdir()
    for name in ("squeue", "sinfo", "scontrol"):
        (hanging / name).write_text("#!/bin/sh\necho trouble >&2\nexec sleep 600\n")
        (hanging / name).chmod(0o755)
    # Anyone who waited for it would be cut off by `offered` itself.
    for seconds in ("", "nonsense"):
        more = {"PATH": f"{hanging}:/usr/bin:/bin", "OPSCTL_COMPLETION_SECONDS": seconds}
        assert offered(folder, "exclude", "add", "n", **more) == []
    assert offered(folder, "status", "--run", "", XDG_STATE_HOME="/dev/null/none") == ["mine"]


def test_all_commands_are_offered_without_importing_them(folder: Path) -> None:
    assert offered(folder, "") == list(COMMANDS)
    code = (
        "import os, sys; os.environ.update(_OPSCTL_COMPLETE='bash_complete', COMP_WORDS='opsctl ', COMP_CWORD='1')\n"
        "from opsctl.cli import main\n"
        "try: main([])\n"
        "except SystemExit: pass\n"
        "assert 'opsctl.cli.status' not in sys.modules and 'opsctl.cli.plan' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20, stdout=subprocess.DEVNULL)


def test_every_value_that_can_be_completed_is_called_so_by_some_command() -> None:
    from opsctl.cli import completion

    called: set[str] = set()

    def walk(command: click.Command) -> None:
        for param in command.params:
            called.add(str(param.metavar or "").strip("[].").replace("...]", "").rstrip(".]"))
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                below = command.get_command(click.Context(command), name)
                assert below is not None
                walk(below)

    walk(root)
    assert completion._VALUES.keys() <= called
