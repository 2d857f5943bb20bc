from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from opsctl.run.config.paths import RunPaths
from opsctl.run.state import chains
from opsctl.run.state.chains import REFILL, SUBMIT, Chain, counted_since, last_word
from tests.anything import MOMENTS, any_json
from tests.unit.jobs.control.test_overlap import job
from trainer.formats.tolerant import convert

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CHAIN = Chain(
    chain=11,
    token="70ce",
    submitted_at=NOW,
    user="alice",
    host="login1",
    name="tiny",
    work_dir="/runs/tiny",
    revision="0001-abc",
    array="1-3%1",
    after=("9",),
    arguments=("--lr", "it's"),
    nodes=4,
    exclude="x1",
    begin="now+1hour",
)
OURS = structs.replace(job(12, 11, "1", "RUNNING"), comment="opsctl run=5eed submit=70ce", submitted_at=NOW)


def run_paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.state.mkdir(parents=True)
    return paths


def test_a_chain_is_read_back_as_it_was_recorded(tmp_path: Path) -> None:
    paths = run_paths(tmp_path)
    chains.append_chain(paths, CHAIN)
    assert chains.read_chains(paths) == [CHAIN]


def test_a_line_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    paths = run_paths(tmp_path)
    paths.chains.write_text(
        '{"chain": 11, "token": "70ce", "submitted_at": "2026-01-02T04:04:05+01:00", "user": "alice", '
        '"host": "login1", "revision": "0001-abc", "array": "1-3%1", "after": ["9"], "arguments": ["--lr", "it\'s"], '
        '"nodes": 4, "exclude": "x1", "begin": "now+1hour"}\n'
    )
    assert chains.read_chains(paths) == [structs.replace(CHAIN, name="", work_dir="")]


@given(any_json(Chain.__struct_fields__))
def test_any_json_is_read_without_an_error(value: object) -> None:
    found = convert(value, Chain)
    assert found is None or isinstance(found, Chain)


@given(
    st.builds(
        Chain,
        chain=st.integers(0),
        submitted_at=MOMENTS,
        user=st.text(),
        array=st.text(),
        arguments=st.lists(st.text() | st.just("caf\udce9")).map(tuple),
        nodes=st.none() | st.integers(1),
    )
)
def test_every_chain_is_read_back_as_it_was_recorded(tmp_path_factory: pytest.TempPathFactory, chain: Chain) -> None:
    paths = run_paths(tmp_path_factory.mktemp("run"))
    chains.append_chain(paths, chain)
    assert chains.read_chains(paths) == [chain]


def test_half_a_line_of_a_crashed_writer_hides_no_other_chain(tmp_path: Path) -> None:
    paths = run_paths(tmp_path)
    paths.chains.write_text('{"chain": 5, "subm')
    chains.append_chain(paths, CHAIN)
    assert chains.read_chains(paths) == [CHAIN]


@pytest.mark.parametrize(
    ("hows", "which", "counted"),
    [
        ((SUBMIT,), 0, 0),
        ((SUBMIT, REFILL), 1, 0),
        ((SUBMIT, REFILL, REFILL), 2, 0),
        ((SUBMIT, REFILL, SUBMIT), 1, 0),  # what a user submitted after it is no word for it
        ((SUBMIT, REFILL, SUBMIT, REFILL), 3, 2),
        ((REFILL,), 0, 0),
    ],
)
def test_a_chain_that_only_keeps_a_run_going_counts_attempts_as_the_one_that_somebody_wanted(
    hows: tuple[str, ...], which: int, counted: int
) -> None:
    at = [datetime(2026, 3, 1, 10 + hour, tzinfo=UTC) for hour in range(len(hows))]
    chains = [
        Chain(chain=number, submitted_at=moment, user="ann", array="1", how=how)
        for number, (moment, how) in enumerate(zip(at, hows, strict=True))
    ]
    assert counted_since(chains, at[which]) == at[counted]
    unknown = datetime(2026, 5, 1, tzinfo=UTC)
    assert counted_since(chains, unknown) == unknown and counted_since([], unknown) == unknown
    assert last_word([]) is None
