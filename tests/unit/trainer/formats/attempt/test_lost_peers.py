"""The launcher's sentence about a failed rank, and ranks that only lost a peer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.formats.attempt.error_file import failure_sentence, is_lost_peer, says_nothing

#: What gloo, NCCL and torch say about a peer that is gone, as seen in logs.
LOST = [
    "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.1]:13219",
    "RuntimeError: Read error [127.0.0.1]:15065: Connection reset by peer",
    "RuntimeError: [enforce fail] Connection was likely closed",
    "Socket closed",
    "Broken pipe",
    "torch.distributed.DistNetworkError: The client socket has failed to connect",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1333, remote process exited",
    "torch.distributed.DistStoreError: wait timeout after 600000ms",
    "ncclRemoteError: A call failed possibly due to a network error",
    "NCCL communicator was aborted on rank 3",
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)",
    "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
    "[rank4]: Process group watchdog thread terminated with exception: CUDA driver error",
    "Timed out after 30 seconds waiting for clients",
    "failed to recv, got 0 bytes",
    "gloo/transport/tcp/pair.cc: read error",
    "Exit barrier failed",
    "The client socket has timed out after 600000ms while trying to connect to (node1, 29500).",
    "wait timeout after 1800000ms, keys: /worker/0",
    "RuntimeError: Connection was aborted",
]
OWN = [
    "subprocess.TimeoutExpired: Command '['git']' timed out after 30 seconds",
    "ValueError: loss is NaN",
    "torch.OutOfMemoryError: CUDA out of memory",
    "AssertionError",
    "",
]


@pytest.mark.parametrize("message", LOST)
def test_a_rank_that_lost_a_peer_is_known_by_its_words_and_by_the_launchers_sentence(message: str) -> None:
    assert is_lost_peer(message)
    assert is_lost_peer(failure_sentence(1, None, message, followed=is_lost_peer(message)))


@pytest.mark.parametrize("message", OWN)
def test_a_rank_that_failed_by_itself_is_no_follower(message: str) -> None:
    assert not is_lost_peer(message)
    assert not is_lost_peer(failure_sentence(1, None, message, followed=False))


@given(st.integers(-1, 255), st.none() | st.integers(1, 70), st.text(), st.booleans())
def test_any_sentence_is_read_back(exit_code: int, number: int | None, message: str, followed: bool) -> None:
    sentence = failure_sentence(exit_code, number, message, followed)
    first_line = message.splitlines()[0] if message else ""
    assert is_lost_peer(sentence) == (followed or is_lost_peer(first_line if number is None else ""))
    if not followed and (number is not None or not first_line):
        assert says_nothing(sentence)
    if number is None and first_line:
        assert sentence.endswith(first_line)


@pytest.mark.parametrize(
    ("sentence", "ending"),
    [
        (failure_sentence(7, None, "", False), " 7"),
        (failure_sentence(None, 9, "gone", False), " SIGKILL"),
        (failure_sentence(None, 64, "", False), " SIGRTMAX"),
        (failure_sentence(None, 50, "", True), " 50"),
        (failure_sentence(1, None, "ValueError: odd\nsecond line", False), "ValueError: odd"),
    ],
)
def test_a_sentence_names_the_signal_else_the_ranks_own_words_else_its_status(sentence: str, ending: str) -> None:
    assert sentence.endswith(ending)
