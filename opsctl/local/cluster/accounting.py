"""slurmdbd on a private MariaDB: who may run what, and what ran."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

from opsctl.core.errors import OpsctlError
from opsctl.local.cluster import daemons
from opsctl.local.cluster.files import Places
from opsctl.local.cluster.installation import Installation
from opsctl.local.cluster.ports import Ports
from opsctl.local.cluster.processes import pid_of
from opsctl.local.cluster.spec import Spec
from opsctl.slurm.process import run_slurm

#: sacctmgr's way to say that what was to be added is there.
_NOTHING_TO_DO = ("Nothing new added", "already exists")


def start(
    places: Places,
    ports: Ports,
    installation: Installation,
    environment: dict[str, str],
    missing: set[str],
    user: str,
    progress: Callable[[str], None],
) -> None:
    """Start the database and slurmdbd as far as they are `missing`, and wait for each."""
    if "mariadbd" in missing:
        progress("database")
        places.database_scratch.mkdir(mode=0o700, exist_ok=True)
        with_scratch = {**environment, "TMPDIR": str(places.database_scratch)}
        _make_database(places, installation, with_scratch, user)
        _start_database(places, installation, with_scratch, user)
    if "slurmdbd" in missing:
        progress("slurmdbd")
        with_socket = {**environment, "MYSQL_UNIX_PORT": str(places.database_socket)}
        daemons.start(places, "slurmdbd", [installation["slurmdbd"]], with_socket)
        _await(places, "slurmdbd", lambda: daemons.listens(ports.slurmdbd))


def _make_database(places: Places, installation: Installation, environment: dict[str, str], user: str) -> None:
    """The system tables, made beside and renamed into place; one account, the Unix user's, without password."""
    if places.database.is_dir():
        return
    beside = places.database.with_name("db.new")
    shutil.rmtree(beside, ignore_errors=True)
    command = [
        installation["mariadb-install-db"],
        "--no-defaults",
        f"--datadir={beside}",
        "--skip-test-db",
        "--skip-name-resolve",
    ]
    command += ["--auth-root-authentication-method=socket", f"--auth-root-socket-user={user}", f"--user={user}"]
    daemons.start(places, "mariadbd", command, environment, timeout_s=60)
    beside.rename(places.database)


def _start_database(places: Places, installation: Installation, environment: dict[str, str], user: str) -> None:
    places.database_socket.unlink(missing_ok=True)
    command = [
        installation["mariadbd"],
        "--no-defaults",
        "--skip-networking",
        f"--user={user}",
        f"--datadir={places.database}",
    ]
    command += [f"--socket={places.database_socket}", f"--pid-file={places.pid_file('mariadbd')}"]
    command += ["--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900", "--performance-schema=OFF"]
    # A cluster to play with need not survive a power cut to the last job.
    command += ["--innodb-flush-log-at-trx-commit=0"]
    daemons.start(places, "mariadbd", command, environment, detach=True)
    _await(
        places, "mariadbd", lambda: daemons.answers(places.database_socket) and pid_of(places, "mariadbd") is not None
    )


def _await(places: Places, daemon: str, is_ready: Callable[[], bool]) -> None:
    alive = lambda: daemons.may_be_starting(places, daemon)  # noqa: E731
    daemons.await_ready(daemon, places.log(daemon), is_ready, alive, 60)


def register_cluster(spec: Spec, installation: Installation, environment: dict[str, str]) -> None:
    """Make the cluster known, before its controller comes: slurmctld exits when slurmdbd does not know it."""
    _sacctmgr(installation, environment, ["add", "cluster", spec.slurm_name])


def add_people(spec: Spec, installation: Installation, environment: dict[str, str], user: str) -> None:
    """Make the QoS and accounts of `spec` and let `user` use them all; the first account is the default one.

    Needs the controller: it is what makes the kinds of limits (gres/gpu) known.
    """
    for words in people_commands(spec, user):
        _sacctmgr(installation, environment, words)


def people_commands(spec: Spec, user: str) -> list[list[str]]:
    """The sacctmgr commands of `add_people`, in order."""
    commands = [["add", "qos", qos.name, *(["set", *qos.limits] if qos.limits else [])] for qos in spec.qos]
    for account in spec.accounts:
        words = ["add", "account", account.name, f"Cluster={spec.slurm_name}", *account.limits]
        if account.parent:
            words.append(f"Parent={account.parent}")
        if account.qos:
            words += [f"QosLevel={','.join(account.qos)}", f"DefaultQos={account.qos[0]}"]
        commands.append(words)
    accounts = [
        account.name for account in spec.accounts if not any(other.parent == account.name for other in spec.accounts)
    ]
    commands.append(
        [
            "add",
            "user",
            user,
            f"Account={','.join(accounts)}",
            f"Cluster={spec.slurm_name}",
            f"DefaultAccount={accounts[0]}",
        ]
    )
    return commands


def _sacctmgr(installation: Installation, environment: dict[str, str], words: Sequence[str]) -> None:
    answer = run_slurm([installation["sacctmgr"], "-i", *words], environment, 30)
    if answer.code and not any(said in answer.stdout + answer.stderr for said in _NOTHING_TO_DO):
        raise OpsctlError(f"sacctmgr {' '.join(words)}: {answer.words()}")
