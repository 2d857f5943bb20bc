"""Complete screens and messages of opsctl, compared with golden files: the place to read and review their wording."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import time, timedelta
from pathlib import Path

import pytest

from opsctl.core.account import account_name
from opsctl.core.shipped import templates_folder
from opsctl.monitoring.alerts.decide import Rules, decide
from opsctl.run.state.alerts import Memory, Silence
from tests.tiny_run import write_checkpoint, write_run
from tests.unit.cli import test_attempts, test_carbon, test_status
from tests.unit.cli.called import Answer, answer, without_slurm
from tests.unit.cli.test_attempts import record
from tests.unit.jobs.control.checkpoint_runs import care_run, save
from tests.unit.monitoring.alerts.test_decide import CHECKS, HOUR, START, critical, warning

Golden = Callable[[str, str], None]
attempts_paths, carbon_paths, published = test_attempts.paths, test_carbon.paths, test_status.published


@pytest.fixture(autouse=True)
def _utc_and_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLUMNS", "80")


def screen(folder: Path, *words: str) -> Answer:
    return answer(folder, *words, environment={**without_slurm(folder), "HOME": "/home/ann"})


def told(folder: Path, *words: str) -> str:
    """Return the command, all that it prints and its exit code, without what differs from call to call."""
    found = screen(folder, *words)
    text = f"$ opsctl {' '.join(words)}\n{found.stdout}{found.stderr}"
    text += f"[exit code {found.returncode}]\n" if found.returncode else ""
    return settled(text, folder)


def settled(text: str, folder: Path) -> str:
    """Replace what differs from machine to machine: folders, times, accounts, hosts, sizes and digests."""
    text = text.replace(str(folder), "/home/ann/run").replace(str(templates_folder()), "TEMPLATES")
    for pattern, instead in (
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?([+-]\d\d:\d\d|Z)?", "TIME"),
        (r"\d:\d\d:\d\d ago", "0:00:00 ago"),
        (r"\b(\d{4})-[0-9a-f]{12}\b", r"\1-DIGEST"),
        (rf"\b{account_name()}(@[\w.-]+)?\b", "USER"),
        (r"[\d.]+ (bytes|kB)\b|\b[\d.]+e-07\b", "SIZE"),
        (r"[ \t]+$", ""),
    ):
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return text


def test_the_help(tmp_path: Path, golden: Golden) -> None:
    golden("cli/help.txt", "\n".join(told(tmp_path, *words) for words in (["--help"], ["checkpoints", "--help"])))


def test_the_first_words_in_a_folder(tmp_path: Path, golden: Golden) -> None:
    before = told(tmp_path)
    write_run(tmp_path)
    golden("cli/next.txt", before + "\n" + told(tmp_path))


def test_the_status_without_slurm(published: Path, golden: Golden) -> None:
    golden("cli/status.txt", told(published, "status"))


def test_the_plan_of_a_shipped_run(tmp_path: Path, golden: Golden) -> None:
    golden("cli/plan.txt", told(tmp_path, "plan", str(templates_folder() / "examples" / "tr11-176B-ml.toml")))


def test_the_attempts(attempts_paths: object, golden: Golden, tmp_path: Path) -> None:
    record(attempts_paths)  # type: ignore[arg-type]
    golden("cli/attempts.txt", told(tmp_path, "attempts"))


def test_the_carbon_report(carbon_paths: object, golden: Golden, tmp_path: Path) -> None:
    golden("cli/carbon.txt", told(tmp_path, "carbon", "report", "--extrapolate", "--intensity", "50"))


def test_checkpoints_and_what_a_prune_would_remove(tmp_path: Path, golden: Golden) -> None:
    care_run(tmp_path)
    for iteration in (10, 20, 30, 40):
        save(tmp_path, iteration)
    words = (["list"], ["prune"], ["rollback", "--to", "20"], ["rollback", "--undo"], ["repoint", "--to", "70"])
    golden("cli/checkpoints.txt", "\n".join(told(tmp_path, "checkpoints", *one) for one in words))


def test_the_kill_switch(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "output").mkdir(mode=0o755)
    (tmp_path / "run.toml").write_text('[run]\nname = "small"\n')
    words = (["status"], ["arm"], ["trigger", "--reason", "a spike"], ["trigger"], ["status"], ["deactivate"])
    golden("cli/kill-switch.txt", "\n".join(told(tmp_path, "kill-switch", *one) for one in words))


REFUSED = """
run nothing
status tr1 --all
status --hub lab/run --watch
on-call --since yesterday
logs --rank 0
attempts --since 3d
report --all-runs --output x
carbon report --country QQQ
alerts silence never
alerts ack corn
checkpoints backup --to nope://x
checkpoints backup --all-runs --to /x
checkpoints verify --all --step 20
restore --data --to x
cron add --shipped nothing
cron start --tick 1s
disk purge
exclude add n1
init taken --from tr11
init a;b
init mine --gpus 12
init mine --from-script none.sh
perms fix
refill tr1 --all-runs
shell --node n1
submit
plan --gpus 8
watch training --run nowhere
json-schema statsu
""".strip().splitlines()


def test_what_is_refused(tmp_path: Path, golden: Golden) -> None:
    write_run(tmp_path)
    golden("cli/refused.txt", "\n".join(told(tmp_path, *line.split()) for line in REFUSED))


def test_run_files_that_are_wrong(tmp_path: Path, golden: Golden) -> None:
    lines = ("not_a_variable = 1", "nodes = 0", 'nodes = "four"', 'time = "soon"', "[carbon]\nwatts = 3")
    texts = []
    for line in lines:
        write_run(tmp_path)
        key = line.partition(" ")[0]
        path = tmp_path / "run.toml"
        text = path.read_text()
        changed = re.sub(rf"^{key} = .*$", line, text, flags=re.MULTILINE)
        path.write_text(changed if changed != text else f"{text}\n{line}\n")
        texts.append(f"# {line!r}\n{told(tmp_path, 'render')}")
    golden("cli/run-file.txt", "\n".join(texts))


def test_a_latest_checkpoint_that_is_missing(tmp_path: Path, golden: Golden) -> None:
    write_run(tmp_path)
    for iteration in (10, 20):
        write_checkpoint(tmp_path, iteration, iteration * 8)
    (tmp_path / "output" / "checkpoints" / "latest").unlink()
    words = (["submit"], ["checkpoints", "list"], ["checkpoints", "repoint", "--dry-run"])
    golden("cli/no-latest.txt", "\n".join(told(tmp_path, *one) for one in words))


def test_the_messages_of_alerts(golden: Golden) -> None:
    rules = Rules(escalate_after=HOUR, quiet=(time(22), time(7)))
    memory = Memory()
    texts = []
    for hours, found in (
        (0, (critical("cron"), warning("disk", "/scratch"))),
        (1, (critical("cron"), warning("disk", "/scratch"))),
        (6.5, (critical("cron"), warning("disk", "/scratch"))),
        (7, ()),
    ):
        memory, new = decide(memory, found, CHECKS, START + hours * HOUR, rules)
        texts += [f"## {one.title}\n{one.body}\n" for one in new]
    memory = Memory(silence=Silence(until=START + timedelta(days=1), by="ann", why="maintenance"))
    for days in (0.5, 1.1):
        memory, new = decide(memory, (critical("cron"),), CHECKS, START + timedelta(days=days), rules)
        texts += [f"## {one.title}\n{one.body}\n" for one in new]
    golden("cli/alerts.txt", "\n".join(texts))
