import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError, RunFileError, UsageError
from opsctl.jobs.control.send_chain import ChainOptions
from opsctl.jobs.control.submit import check
from opsctl.run.config.load import LoadedRun, load_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.group_folder import explained_disk_errors
from tests.tiny_run import write_run
from tests.users import as_user

ITERATION = (
    " iteration {n:8d}/ 500 | consumed samples: {n:12d} | consumed tokens: {n:12d} | elapsed time per iteration (s): "
    "{s:.2f} | learning rate: 1.000E-03 | global batch size: 8 | lm loss: 5.0E+00 | grad norm: 1.0 |\n"
)


def loaded(tmp_path: Path, **changes: object) -> LoadedRun:
    return load_run_file(write_run(tmp_path, **changes), {})  # type: ignore[arg-type]


def test_the_run_files_array_is_taken_when_none_is_given(tmp_path: Path) -> None:
    assert check(loaded(tmp_path), ChainOptions()).options.array == "1-3%1"
    assert check(loaded(tmp_path), ChainOptions(array="5")).options.array == "5%1"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("--num-layer", "x"), "num-layers"),
        (("--no-such-thing", "1"), "--no-such-thing"),
        (("loose",), "loose"),
        (("--lr", "fast"), "lr"),
        (("--save", "/elsewhere"), "^--save .*run"),
        (("--kill_switch_path=/x",), "--kill-switch-path .*run"),
        (("--kill-switch", "/x"), "--kill-switch-path .*run"),
        (("--kill", "/x"), "--kill-switch-path .*run"),
        (("--stop_req=/x",), "--stop-request-path .*run"),
        (("--exit-rep", "/x"), "--exit-report-path .*run"),
        (("--sav=/x",), "--sav .*--save-interval"),
        (("--global-batch-size", "3"), "3"),
    ],
)
def test_one_off_arguments_are_checked_before_anything_happens(
    tmp_path: Path, arguments: tuple[str, ...], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        check(loaded(tmp_path), ChainOptions(arguments=arguments))
    assert not (tmp_path / "output").exists()


def test_good_one_off_arguments_pass(tmp_path: Path) -> None:
    assert check(loaded(tmp_path), ChainOptions(arguments=("--lr", "5e-4", "--exit-interval", "20")))
    assert check(loaded(tmp_path), ChainOptions(arguments=("--train-sam", "100", "--exit_dur=5")))
    assert check(loaded(tmp_path), ChainOptions(arguments=("--load", "/elsewhere", "--tensorboard-dir", "/x")))


def test_other_nodes_must_fit_the_layout(tmp_path: Path) -> None:
    check(loaded(tmp_path), ChainOptions(nodes=4))
    with pytest.raises(RunFileError, match="DP 6"):
        check(loaded(tmp_path), ChainOptions(nodes=3))  # 6 replicas do not divide a batch of 8
    with pytest.raises(UsageError, match="1 or more"):
        check(loaded(tmp_path), ChainOptions(nodes=0))


def test_the_margin_is_refused_when_the_log_measured_longer_iterations(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    assert check(run, ChainOptions()).warnings == ()
    run.paths.logs.mkdir(parents=True)
    run.paths.main_log.write_text("".join(ITERATION.format(n=n, s=90.0) for n in range(1, 30)))
    with pytest.raises(RunFileError, match="exit_margin"):
        check(run, ChainOptions())


def test_one_slow_save_among_many_refuses_no_submit(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    run.paths.logs.mkdir(parents=True)
    took = [*[1000.0] * 5, 77000.0, *[1000.0] * 3]
    run.paths.main_log.write_text("".join(f"time (ms) | save-checkpoint: {ms:.2f}\n" for ms in took))
    (warning,) = check(run, ChainOptions()).warnings
    assert "9 saves" in warning and "77 s" in warning


def test_unknown_durations_are_only_warned_of(tmp_path: Path) -> None:
    run = loaded(tmp_path)
    run.path.write_text(run.path.read_text().replace("save_seconds = 1", ""))
    (warning,) = check(load_run_file(run.path, {}), ChainOptions()).warnings
    assert "save_seconds" in warning


@pytest.mark.parametrize("group", ["no-such-group", "root"])
def test_a_group_that_is_not_there_or_not_ones_own_is_refused_and_only_warned_of_when_looking(
    tmp_path: Path, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"no-such-group": "'no-such-group'", "root": "group root"}[group]
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    monkeypatch.setattr(os, "getegid", lambda: 65534)
    monkeypatch.setattr(os, "getgroups", list)
    run = loaded(tmp_path)
    run.path.write_text(run.path.read_text().replace('output = "output"', f'group = "{group}"'))
    run = load_run_file(run.path, {})
    with pytest.raises(RunFileError, match=said):
        check(run, ChainOptions())
    assert said in check(run, ChainOptions(), files=False).warnings[-1]


def test_a_dry_run_is_refused_as_well_where_only_the_owner_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid():
        pytest.skip("giving a folder away needs root")
    run = loaded(tmp_path)
    run.path.write_text(run.path.read_text().replace('output = "output"', 'publish = "owner"'))
    run = load_run_file(run.path, {})
    run.paths.output.mkdir()
    os.chown(run.paths.output, 1, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(OpsctlError, match=r'tiny.*\[run\] publish = "owner"'):
        check(run, ChainOptions())
    check(run, ChainOptions(), files=False)


@pytest.mark.skipif(os.getuid() != 0, reason="acting as another user needs root")
@pytest.mark.parametrize(
    ("mode", "told"),
    [(0o755, r"root .*`group`.*\[run\]"), (0o2775, r"{user} .*group root")],
)
def test_somebody_who_may_not_write_is_told_why_and_not_sent_round_in_a_circle(
    unix_user: Callable[..., str], mode: int, told: str
) -> None:
    user = unix_user("eve")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        paths = RunPaths(Path(folder))
        paths.output.chmod(mode)

        def write() -> None:
            with explained_disk_errors(paths):
                (paths.output / "run-id").touch()

        with pytest.raises(OpsctlError, match=told.format(user=user)):
            as_user(user, write)
