import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.core.account import account_and_host, account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.shipped import templates_folder
from opsctl.run.config.load import LoadedRun, load_run_file
from opsctl.run.state import revisions
from opsctl.run.state.revisions import Revision, digest_of
from opsctl.run.state.run_view import view
from tests.facts import missing
from tests.tiny_run import ready, write_run
from trainer.recipe.options import OptionsError

ROOT = Path(__file__).resolve().parents[4]
EXAMPLES = sorted((templates_folder() / "examples").glob("*.toml"))


def loaded(folder: Path, **changes: object) -> LoadedRun:
    return load_run_file(write_run(folder, **changes), {"HOME": "/nowhere"})  # type: ignore[arg-type]


def publish(run: LoadedRun, note: str = "") -> Revision:
    return revisions.publish(ready(run), note)


def names(run: LoadedRun) -> list[str]:
    """Of all revisions, oldest first."""
    return sorted(path.name for path in run.paths.revisions.iterdir())


def test_a_revision_holds_all_that_a_task_needs(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    revision = publish(run, note="why")
    assert sorted(path.name for path in revision.folder.iterdir()) == [
        "engine.json",
        "revision.json",
        "run.json",
        "step.sh",
        "trainer-arguments.json",
    ]
    assert revision.folder.name == f"0001-{revision.digest[:12]}"
    assert revision.file.run.output == str(tmp_path / "output")
    assert revision.trainer_arguments[:2] == ["--num-layers", "2"]
    assert json.loads((revision.folder / "engine.json").read_text())["train_batch_size"] == 8
    assert revision.step_script.startswith("#!/bin/bash\n") and "export OMP_NUM_THREADS=" in revision.step_script
    assert revision.created_at.tzinfo is not None
    assert (revision.note, revision.run_file, revision.run_file_sha256) == ("why", run.path, run.sha256)
    assert revisions.newest(run.paths) == revision


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_what_is_published_is_read_back(tmp_path: Path, example: Path) -> None:
    (tmp_path / "run.toml").write_text(example.read_text())
    run = ready(load_run_file(tmp_path / "run.toml", {"six_ALL_CCFRWORK": "/work"}))
    revisions.publish(run, "n\u00f6te")
    found = revisions.newest(run.paths)
    assert found is not None and found.note == "n\u00f6te" and found.run_file_sha256 == run.sha256
    assert (found.file, tuple(found.trainer_arguments), found.options()) == (run.file, run.arguments, run.options)


def test_publishing_the_same_again_changes_nothing(tmp_path: Path) -> None:
    first = publish(loaded(tmp_path))
    run = loaded(tmp_path)
    run.path.write_text("# only a comment\n" + run.path.read_text())
    assert publish(load_run_file(run.path, {})) == first
    assert names(run) == [first.name]


def test_each_change_is_a_new_revision_and_the_old_stays(tmp_path: Path) -> None:
    first = publish(loaded(tmp_path))
    second = publish(loaded(tmp_path, lr="2e-3"))
    assert (first.number, second.number) == (1, 2)
    assert first.digest != second.digest
    assert names(loaded(tmp_path)) == [first.name, second.name]


def test_going_back_to_old_content_is_a_revision_of_its_own(tmp_path: Path) -> None:
    first = publish(loaded(tmp_path))
    publish(loaded(tmp_path, lr="2e-3"))
    third = publish(loaded(tmp_path))
    assert third.number == 3 and third.digest == first.digest


def test_a_withdrawn_revision_is_gone(tmp_path: Path) -> None:
    first = publish(loaded(tmp_path))
    revisions.withdraw(publish(loaded(tmp_path, lr="2e-3")))
    assert revisions.newest(loaded(tmp_path).paths) == first
    assert [path.name for path in loaded(tmp_path).paths.revisions.iterdir()] == [first.name]


_PUBLISH_ON_SMALL_DISKS = """
import json, pathlib, subprocess, sys
from opsctl.core.errors import OpsctlError
from tests.unit.run.state.test_revisions import loaded, publish
run, results = loaded(pathlib.Path(sys.argv[1])), []
output = run.paths.output
for files in range(6):
    inodes = 4 + files  # the disk itself, .opsctl, revisions, the folder of the new revision, and its files
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=700,nr_inodes={inodes}", "none", output], check=True)
    error = ""
    try:
        publish(run)
    except OpsctlError as raised:
        error = str(raised)
    results.append([error, [path.name for path in run.paths.revisions.iterdir()]])
    subprocess.run(["umount", output], check=True)
print(json.dumps(results))
"""


def test_a_full_disk_at_any_of_five_files_leaves_nothing(tmp_path: Path) -> None:
    """The disks are real ones in memory: this needs a kernel that lets a user mount in a namespace."""
    own_namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*own_namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel gives users no namespaces of their own")
    loaded(tmp_path).paths.output.mkdir()
    words = [*own_namespace, sys.executable, "-c", _PUBLISH_ON_SMALL_DISKS, str(tmp_path)]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    *full, (error, names) = json.loads(ran.stdout)
    assert error == "" and [name[:5] for name in names] == ["0001-"]
    assert [left for _, left in full] == [[]] * 5
    assert all("no space left" in refusal and str(tmp_path / "output") in refusal for refusal, _ in full)


def test_what_a_killed_publish_left_does_not_count(tmp_path: Path) -> None:
    paths = loaded(tmp_path).paths
    (paths.revisions / ".new-host-1").mkdir(parents=True)
    assert revisions.newest(paths) is None
    assert publish(loaded(tmp_path)).number == 1


def test_the_run_file_differs_where_a_value_does_not_where_a_comment_does(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    revision = publish(run)
    run.path.write_text("# a comment\n" + run.path.read_text())
    assert revisions.differs_from_published(load_run_file(run.path, {}), revision) == []
    edited = loaded(tmp_path, lr="2e-3", nodes=4, slurm='constraint = "fast"')
    assert sorted(revisions.differs_from_published(edited, revision)) == [
        "slurm.constraint",
        "slurm.nodes",
        "trainer.lr",
    ]


def republish(revision: Revision, number: int | None = None, **texts: str) -> Path:
    """Another whole revision with these files instead (their names with `_` for what no keyword holds)."""
    changed = {name.replace("_", "-").replace("-json", ".json"): text for name, text in texts.items()}
    files = {**revision.texts, **changed}
    about = json.loads((revision.folder / "revision.json").read_text())
    about |= {"number": number or revision.number + 1, "digest": digest_of(files)}
    folder = revision.folder.with_name(f"{about['number']:04d}-{about['digest'][:12]}")
    folder.mkdir()
    for name, text in {**files, "revision.json": json.dumps(about)}.items():
        (folder / name).write_text(text)
    return folder


def test_the_tenth_thousandth_revision_is_newer_than_the_one_before(tmp_path: Path) -> None:
    first = publish(loaded(tmp_path))
    for number in (9999, 10000):
        republish(first, number)
    found = revisions.newest(loaded(tmp_path).paths)
    assert found is not None and found.number == 10000 and not found.damage


def cut(path: Path) -> None:
    path.write_text(path.read_text()[:-20])


def emptied(path: Path) -> None:
    path.write_text("")


def null(path: Path) -> None:
    path.write_text("null")


def listed(path: Path) -> None:
    path.write_text("[" * 5000)


def removed(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def a_second_name(path: Path) -> None:
    os.link(path, path.parent.parent / "elsewhere")


def huge(path: Path) -> None:
    os.truncate(path, 100 << 20)


def anothers(path: Path) -> None:
    os.chown(path, 1, -1)


DAMAGES = (cut, emptied, null, listed, removed, a_folder, a_pipe, a_link, a_second_name, huge, anothers)


@pytest.mark.parametrize(
    ("name", "damage"),
    [*((name, damage) for name in ("revision.json", "run.json") for damage in DAMAGES), ("step.sh", cut)],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a_damaged_newest_revision_is_named_and_replaced_and_never_used(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    if damage is anothers and os.geteuid():
        pytest.skip("giving a file away needs root")
    run = loaded(tmp_path)
    first = publish(run)
    damage(first.folder / name)
    found = newest(run)
    assert found.name == first.name and found.damage
    with pytest.raises(OpsctlError) as refusal:
        found.options()
    assert "\n" not in str(refusal.value)
    assert missing(str(refusal.value), first.name, run.paths.revisions, "damaged", "opsctl revise") == []
    assert revisions.newest_whole(run.paths) is None
    second = publish(run)
    assert (second.number, second.damage) == (2, "") and newest(run) == second
    assert second.options() == ready(run).options


@pytest.mark.parametrize(
    ("number", "tail"), [("0007", ""), ("0001", "0")], ids=["another number", "another content's hash"]
)
def test_a_revision_under_a_wrong_name_is_damaged(tmp_path: Path, number: str, tail: str) -> None:
    run = loaded(tmp_path)
    first = publish(run)
    hash_ = first.digest[:12] if not tail else "0" * 12
    first.folder.rename(first.folder.with_name(f"{number}-{hash_}"))
    assert missing(newest(run).damage, "revision.json", first.name) == []


def test_a_revision_with_an_extra_file_is_damaged(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    (publish(run).folder / "more").write_text("")
    assert newest(run).damage


def modes(run: LoadedRun, revision: Revision) -> tuple[str, str, set[str]]:
    paths = (run.paths.revisions, revision.folder, *revision.folder.iterdir())
    revisions_mode, folder, *files = (f"{path.stat().st_mode & 0o7777:o}" for path in paths)
    return revisions_mode, folder, set(files)


def test_nobody_can_change_or_take_away_what_another_has_published(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    run.paths.output.mkdir()
    run.paths.output.chmod(0o2770)
    assert modes(run, publish(run)) == ("3770", "2750", {"440"})
    run.paths.output.chmod(0o700)
    run.paths.state.chmod(0o700)
    assert modes(run, publish(loaded(tmp_path, lr="2e-3"))) == ("1700", "700", {"400"})


def test_what_others_could_have_changed_is_published_anew(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    first = publish(run)
    first.folder.chmod(0o770)
    assert publish(run).number == 2
    (newest(run).folder / "step.sh").chmod(0o660)
    assert publish(run).number == 3 and publish(run).number == 3


def test_who_published_is_told_by_whose_the_files_are(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    first = publish(run)
    assert first.created_by == account_and_host()
    about = json.loads((first.folder / "revision.json").read_text())
    (first.folder / "revision.json").chmod(0o600)
    (first.folder / "revision.json").write_text(json.dumps({**about, "created_by": "somebody@else\x1b[2J"}))
    assert newest(run).created_by == account_name()


def test_a_chains_own_arguments_are_understood_as_the_trainer_does(tmp_path: Path) -> None:
    revision = publish(loaded(tmp_path))
    asked = revision.options(["--train-sam", "100", "--exit_dur=5"])
    assert (asked.train_samples, asked.exit_duration_in_mins, asked.global_batch_size) == (100, 5, 8)
    assert asked.kill_switch_path == str(tmp_path / "output" / "kill-switch")
    assert revision.options().train_samples == 4000


def test_an_unknown_option_of_another_release_is_named_and_hides_no_other_record(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    revision = publish(run)
    republish(revision, trainer_arguments_json=json.dumps([*revision.trainer_arguments, "--of-another-release"]))
    with pytest.raises(OptionsError, match="--of-another-release"):
        newest(run).options()
    assert view(str(run.path)).options is None


def test_a_key_that_run_files_no_longer_have_does_not_hinder_a_task(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    tables = json.loads(publish(run).texts["run.json"])
    tables["environment"] = {"requirements": ["r.txt"], "hub": ["lab/words"], "tool": "uv"}
    tables["watch"] |= {"quota_of": ["user"], "touch": False}
    republish(newest(run), run_json=json.dumps(tables))
    assert newest(run).options().train_samples == 4000


@pytest.mark.parametrize("text", ["{", '{"run": {"name": "x"}, "slurm": {}, "of_another_release": {}}'])
def test_a_published_run_that_cannot_be_understood_is_one_line(tmp_path: Path, text: str) -> None:
    run = loaded(tmp_path)
    republish(publish(run), run_json=text)
    with pytest.raises(OpsctlError, match=r"run\.json: .*opsctl revise"):
        newest(run).options()


def newest(run: LoadedRun) -> Revision:
    """The newest revision, as a command that starts now reads it."""
    found = revisions.newest(run.paths)
    assert found is not None
    return found
