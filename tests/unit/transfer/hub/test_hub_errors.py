from __future__ import annotations

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.transfer.hub.far_files import FarFiles, repo_of
from opsctl.transfer.hub.hub_errors import NotNow, RetryPolicy, understood
from tests.hub_server import Fault, Hub
from tests.unit.transfer.hub.far import LOG, REPO, hub, pushes

__all__ = ["hub"]


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "Thu, 01 Jan 2026 00:01:00 GMT", "Date": "Thu, 01 Jan 2026 00:00:00 GMT"}, 60),
        ({"ratelimit": '"api";r=0;t=55'}, 56),
        ({"ratelimit": '"api";r=9;t=55'}, None),
        ({"Retry-After": "999999"}, 3600),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
def test_what_the_server_asks_for_is_waited(hub: Hub, headers: dict[str, str], wait_s: float | None) -> None:
    import httpx2
    from huggingface_hub.utils._http import hf_raise_for_status

    answer = httpx2.Response(429, headers=headers, request=httpx2.Request("GET", hub.endpoint))
    with pytest.raises(NotNow) as later, understood(REPO):
        hf_raise_for_status(answer)
    assert later.value.wait_s == wait_s


def test_one_look_is_repeated_for_a_while_and_then_fails(hub: Hub) -> None:
    now_s, waits = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now_s[0] += seconds

    def policy() -> RetryPolicy:
        return RetryPolicy(20.0, sleep=sleep, clock=lambda: now_s[0])

    files = FarFiles(repo_of(REPO))
    pushes(hub, b"a\n")()
    hub.faults.append(Fault("resolve", status=503, times=3))
    assert policy().through(lambda: files.look(LOG)) is not None
    assert waits == [1, 2, 5]
    hub.faults.append(Fault("resolve", status=503, times=None))
    with pytest.raises(OpsctlError, match="503"):
        policy().through(lambda: files.look(LOG))
    hub.faults[:] = [Fault("resolve", status=429, headers={"Retry-After": "1800"}, times=None)]
    waits.clear()
    with pytest.raises(OpsctlError, match="1800 s"):
        policy().through(lambda: files.look(LOG))
    assert not waits


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, r"\(401\): opsctl hub login"), (403, r"\b403\b|may not"), (418, "418")],
)
def test_a_refusal_says_what_to_type_and_nothing_of_the_servers(hub: Hub, status: int, said: str) -> None:
    hub.faults.append(Fault("resolve", status=status))
    with pytest.raises(OpsctlError, match=said) as refused:
        FarFiles(repo_of(REPO)).look(LOG)
    assert "a bad day" not in str(refused.value) and "\n" not in str(refused.value)


def test_what_is_no_hub_is_known(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.hub_server._Handler._tree", lambda self: self._answer("<html>log in</html>"))
    with pytest.raises(OpsctlError, match="hub"):
        FarFiles(repo_of(REPO)).sizes()
