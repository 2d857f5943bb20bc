"""A backup to a server and a restore from it, killed after each request that the server has carried out."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from opsctl.run.config.schema import BackupTable
from opsctl.run.state.identity import Standing, place_of
from opsctl.transfer.backups.restore_run import Asked, restore_run
from opsctl.transfer.backups.run_files import back_up_rest
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.store import open_store
from tests.s3_server import Fault, Proxy
from tests.unit.jobs.control.checkpoint_runs import latest, seen
from tests.unit.transfer.backups.backed_up_runs import a_run, back_up_now, contents, destination

_TABLE = BackupTable(full_every=20, weights_every=0)
_STARTS_WITHIN_S = 60.0


def killed_after_every_request(proxy: Proxy, pattern: str, do: Callable[[int], object]) -> Iterator[int]:
    """Run `do` again and again in a forked process that dies by SIGKILL after its first, second ... request in which
    the pattern is found, when the server has carried it out and before it is answered. `do` is told which.

    Yields that number after each death; ends when `do` came through, which it must not do by raising.
    """
    for number in range(1, 100):
        child: Future[int] = Future()

        def kill(child: Future[int] = child) -> None:
            os.kill(child.result(_STARTS_WITHIN_S), signal.SIGKILL)

        passed = Fault(pattern, "call", number - 1, calls=lambda: None)
        proxy.faults[:] = [passed, Fault(pattern, "call", calls=kill)]
        pid = os.fork()
        if not pid:
            code = 1
            try:
                do(number)
                code = 0
            finally:
                os._exit(code)
        child.set_result(pid)
        _, status = os.waitpid(pid, 0)
        proxy.faults.clear()
        if not os.WIFSIGNALED(status):
            assert status == 0, f"it failed before request {number}"
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        yield number


def keys(s3: Any, bucket: str, prefix: str) -> dict[str, bytes]:
    found = s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    return {
        one["Key"].removeprefix(prefix): s3.get_object(Bucket=bucket, Key=one["Key"])["Body"].read() for one in found
    }


def asked_for(requests: Iterable[str]) -> set[str]:
    """Names of files in requests."""
    return {one.partition("?")[0].rpartition("/")[2] for one in requests}


def test_a_backup_killed_after_any_request_is_called_whole_only_when_it_is_and_goes_on(
    tmp_path: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    folder, number = a_run(tmp_path / "run", 20), 0
    here = contents(folder / "output" / "checkpoints" / "global_step20")
    ledger = seen(folder).paths.backups

    def sent(number: int) -> None:
        ledger.unlink(missing_ok=True)  # as before the first
        assert back_up_now(folder, f"s3://{bucket}/{number}", _TABLE).problems == []

    for number in killed_after_every_request(proxy, "^(PUT|POST|DELETE)", sent):
        prefix = f"{number}/checkpoints/global_step20/"
        arrived = keys(s3, bucket, prefix)
        assert "manifest.json" not in arrived or arrived.items() >= here.items(), number
        assert not ledger.exists()
        asked = len(proxy.requests)
        assert [one.iteration for one in back_up_now(folder, f"s3://{bucket}/{number}", _TABLE).lines] == [20]
        assert keys(s3, bucket, prefix).items() >= here.items()
        again = asked_for(one for one in proxy.requests[asked:] if one.startswith("PUT"))
        assert not again & (arrived.keys() & here.keys()), number
    assert number >= 5  # whose place it is, what comes, two files, the manifest


def test_a_restore_killed_after_any_request_is_whole_or_not_there_and_goes_on(
    tmp_path: Path, proxy: Proxy, bucket: str
) -> None:
    folder, url, here, number = a_run(tmp_path / "there" / "run", 20), f"s3://{bucket}/x", tmp_path / "here", 0
    saved = contents(folder / "output" / "checkpoints" / "global_step20")
    back_up_now(folder, url, _TABLE)
    with destination(folder, url) as place:
        back_up_rest(place, BackupTable(), folder / "run.toml")
    shutil.rmtree(folder / "output")

    def back(_number: int) -> None:
        with open_store(url) as store:
            restore_run(store, here, Asked(), Flow(), lambda _line: None)

    whole: set[str] = set()
    asked = len(proxy.requests)
    for number in killed_after_every_request(proxy, r"^GET .*(\.pt|manifest\.json|identity\.json)", back):
        assert not here.exists() and not whole & asked_for(proxy.requests[asked:]), number
        whole, asked = (
            {one.name for one in tmp_path.glob(".here.restoring-*/*/*/.restoring-*/*.pt")},
            len(proxy.requests),
        )
    assert not whole & asked_for(proxy.requests[asked:])
    assert number >= 5 and latest(here) == "global_step20" and place_of(seen(here).paths).standing is Standing.SAME
    assert contents(here / "output" / "checkpoints" / "global_step20") == saved
