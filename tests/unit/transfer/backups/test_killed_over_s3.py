"""A backup to a server and a restore from it, killed after each request that the server has carried out."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from opsctl.run.config.schema import BackupTable
from opsctl.run.state.identity import Standing, place_of
from opsctl.transfer.backups.restore_run import Asked, restore_run
from opsctl.transfer.backups.run_files import back_up_rest
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.urls import open_store
from tests.fork_server import SERVER
from tests.s3_server import Fault, Proxy
from tests.unit.jobs.control.checkpoint_runs import latest, seen
from tests.unit.transfer.backups.backed_up_runs import a_run, back_up_now, contents, destination

_TABLE = BackupTable(full_every=20, weights_every=0)
_STARTS_WITHIN_S = 60.0


def killed_after_every_request(proxy: Proxy, pattern: str, do: Callable[[int], object]) -> Iterator[int]:
    """Run `do` again and again in a process that dies by SIGKILL after its first, second ... request in which
    the pattern is found, when the server has carried it out and before it is answered. `do` gets that number.

    Yields the number after each death. Ends when `do` returned; raises AssertionError if it raised. The processes come
    from a server without threads, since a fork of the tests' own process may crash in the threads of boto3 and fsspec.
    """
    for number in range(1, 100):
        started: Future[int] = Future()

        def kill(started: Future[int] = started) -> None:
            os.kill(started.result(_STARTS_WITHIN_S), signal.SIGKILL)

        passed = Fault(pattern, "call", number - 1, calls=lambda: None)
        proxy.faults[:] = [passed, Fault(pattern, "call", calls=kill)]
        child = SERVER.Process(target=_in_environment, args=(dict(os.environ), do, number))
        child.start()
        assert child.pid
        started.set_result(child.pid)
        child.join()
        proxy.faults.clear()
        if child.exitcode == 0:
            return
        assert child.exitcode == -signal.SIGKILL, f"it failed before request {number}"
        yield number


def _in_environment(environment: dict[str, str], do: Callable[[int], object], number: int) -> None:
    os.environ.clear()
    os.environ.update(environment)
    do(number)


def keys(s3: Any, bucket: str, prefix: str) -> dict[str, bytes]:
    found = s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
    return {
        one["Key"].removeprefix(prefix): s3.get_object(Bucket=bucket, Key=one["Key"])["Body"].read() for one in found
    }


def asked_for(requests: Iterable[str]) -> set[str]:
    """Names of files in requests."""
    return {one.partition("?")[0].rpartition("/")[2] for one in requests}


def _back_up_first(folder: Path, to: str, number: int) -> None:
    """Back up as if nothing had been backed up yet."""
    seen(folder).paths.backups.unlink(missing_ok=True)
    assert back_up_now(folder, f"{to}/{number}", _TABLE).problems == []


def test_a_backup_killed_after_any_request_is_called_whole_only_when_it_is_and_goes_on(
    tmp_path: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    folder, number = a_run(tmp_path / "run", 20), 0
    here = contents(folder / "output" / "checkpoints" / "global_step20")
    ledger = seen(folder).paths.backups
    first_backup = partial(_back_up_first, folder, f"s3://{bucket}")
    for number in killed_after_every_request(proxy, "^(PUT|POST|DELETE)", first_backup):
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


def _restore(url: str, here: Path, _number: int) -> None:
    with open_store(url) as store:
        restore_run(store, here, Asked(), Flow(), lambda _line: None)


def test_a_restore_killed_after_any_request_is_whole_or_not_there_and_goes_on(
    tmp_path: Path, proxy: Proxy, bucket: str
) -> None:
    folder, url, here, number = a_run(tmp_path / "there" / "run", 20), f"s3://{bucket}/x", tmp_path / "here", 0
    saved = contents(folder / "output" / "checkpoints" / "global_step20")
    back_up_now(folder, url, _TABLE)
    with destination(folder, url) as place:
        back_up_rest(place, BackupTable(), folder / "run.toml")
    shutil.rmtree(folder / "output")

    back = partial(_restore, url, here)
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
