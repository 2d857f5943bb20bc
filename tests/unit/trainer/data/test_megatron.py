"""Our files and our order of samples against megatron-core's own code, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from tests.unit.trainer.data.conftest import MakePair, options_for
from trainer.data.build import build_datasets
from trainer.data.gpt_dataset import BlendedDataset
from trainer.data.indices import blend_order, build_sample_index, normalized
from trainer.data.inspection import main as inspect
from trainer.data.mix import main as write_mixture
from trainer.recipe.data_options import SPLITS

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")


class NamedTokenizer:
    """The parts of a tokenizer that megatron-core needs here."""

    vocab_size, eod, pad = 1000, 0, -1
    unique_identifiers = {"name": "none"}  # noqa: RUF012


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    """megatron-core's blend builds its index only on rank 0 of a process group."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def threshold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """megatron-core's threshold: no option of its own, but a constant inside one of the class's functions."""
    from megatron.core.datasets.gpt_dataset import GPTDataset

    wanted: float = request.param
    if wanted != 0.80:
        functions = [one for one in vars(GPTDataset).values() if isinstance(one, FunctionType)]
        (function,) = [one for one in functions if 0.80 in one.__code__.co_consts]
        constants = function.__code__.co_consts
        assert constants.count(0.80) == 1
        code = function.__code__.replace(co_consts=tuple(wanted if value == 0.80 else value for value in constants))
        changed = FunctionType(code, function.__globals__, closure=function.__closure__)
        monkeypatch.setattr(GPTDataset, function.__name__, changed)
    return wanted


def megatron(blend: Any, sizes: tuple[int, int, int], folder: Path, sequence_length: int, seed: int) -> list[Any]:
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    config = GPTDatasetConfig(
        random_seed=seed,
        sequence_length=sequence_length,
        blend=blend,
        split="8,1,1",
        path_to_cache=str(folder / "megatron"),
        tokenizer=NamedTokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        mid_level_dataset_surplus=0.005,
    )
    return list(BlendedMegatronDatasetBuilder(GPTDataset, list(sizes), lambda: True, config).build())


def assert_equal(theirs: Any, ours: Any) -> None:
    """Check for equal indices, also their types, and equal tokens in every sample."""
    names = ("document_index", "sample_index", "shuffle_index", "dataset_index", "dataset_sample_index")
    compared = [name for name in names if hasattr(theirs, name)]
    assert len(compared) in (2, 3)
    for name in compared:
        one, other = getattr(theirs, name), getattr(ours, name)
        assert one.dtype == other.dtype and np.array_equal(one, other), name
    assert len(theirs) == len(ours)
    for place in range(len(theirs)):
        sample = theirs[place]
        tokens = torch.cat([sample["tokens"], sample["labels"][-1:]]).tolist()
        assert tokens == ours[place].tolist(), place


@pytest.mark.parametrize(("dtype", "vocab"), [("uint16", 60_000), ("int32", 250_000)])
def test_files_have_the_bytes_of_megatrons_builder(make_pair: MakePair, tmp_path: Path, dtype: str, vocab: int) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    random = np.random.default_rng(1)
    documents = [random.integers(0, vocab, random.integers(1, 200)).tolist() for _ in range(60)]
    builder = IndexedDatasetBuilder(f"{tmp_path}/theirs.bin", getattr(np, dtype))
    for document in documents:
        builder.add_document(torch.tensor(document), [len(document)])
    builder.finalize(f"{tmp_path}/theirs.idx")
    ours = make_pair("ours", documents, dtype=np.dtype(dtype).newbyteorder("<").str)
    for ending in ("bin", "idx"):
        assert Path(f"{ours}.{ending}").read_bytes() == (tmp_path / f"theirs.{ending}").read_bytes()


@pytest.mark.parametrize(
    ("sizes", "sequence_length", "seed", "threshold"),
    [
        ((20, 5, 5), 16, 1234, 0.80),  # less than an epoch
        ((170, 20, 1), 16, 7, 0.95),  # last epoch needed in part
        ((360, 50, 30), 16, 1234, 0.80),  # 2.2 epochs
        ((385, 47, 50), 16, 1234, 0.95),  # between 0.80 and 0.95 of an epoch
        ((385, 47, 50), 16, 7, 0.80),
        ((900, 30, 30), 7, 7, 0.95),
        ((40, 3, 3), 61, 1234, 0.95),
    ],
    indirect=["threshold"],
)
def test_one_file_gives_megatrons_order_and_samples(
    make_pair: MakePair, tmp_path: Path, threshold: float, seed: int, sizes: tuple[int, int, int], sequence_length: int
) -> None:
    random = np.random.default_rng(seed)
    prefix = make_pair("corpus", lengths=random.integers(0, 60, 100).tolist())
    theirs = megatron(([prefix], None), sizes, tmp_path, sequence_length, seed)
    options = options_for(
        data_path=[prefix],
        split="8,1,1",
        seq_length=sequence_length,
        seed=seed,
        separate_last_epoch_threshold=threshold,
    )
    ours = build_datasets(options, *sizes)
    for one, other in zip(theirs, (ours.train, ours.valid["valid"], ours.test["test"]), strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("threshold", [0.80, 0.95], indirect=True)
def test_a_last_epoch_needed_to_88_percent_shows_the_threshold(
    make_pair: MakePair, tmp_path: Path, threshold: float
) -> None:
    prefix = make_pair("corpus", lengths=[50] * 100)
    per_epoch = (80 * 50 - 1) // 16
    sizes = (per_epoch + round(0.88 * per_epoch), 1, 1)
    theirs = megatron(([prefix], None), sizes, tmp_path, 16, 1234)[0]
    options = options_for(data_path=[prefix], split="8,1,1", seq_length=16, separate_last_epoch_threshold=threshold)
    ours = build_datasets(options, *sizes).train
    assert_equal(theirs, ours)
    kept_apart = set(theirs.document_index[:80].tolist()) == set(range(80))
    assert kept_apart is (threshold == 0.95)


@pytest.mark.parametrize("weights", [(0.3, 0.7), (1.0, 99.0), (5.0, 5.0), (0.1, 0.1, 5.0), (2.0,)])
def test_a_blend_gives_megatrons_order_and_samples(
    make_pair: MakePair, tmp_path: Path, weights: tuple[float, ...]
) -> None:
    random = np.random.default_rng(3)
    prefixes = [make_pair(name, lengths=random.integers(1, 60, 80).tolist()) for name in "abc"[: len(weights)]]
    sizes = (500, 40, 30)
    theirs = megatron((prefixes, list(weights)), sizes, tmp_path, 16, 1234)
    words = [str(word) for pair in zip(weights, prefixes, strict=True) for word in pair]
    ours = build_datasets(options_for(data_path=words, split="8,1,1", seq_length=16), *sizes)
    for one, other in zip(theirs, (ours.train, ours.valid["valid"], ours.test["test"]), strict=True):
        assert_equal(one, other)
        assert isinstance(other, BlendedDataset)
        assert one.weights == other.weights  # to the last bit: it decides between equals


def test_files_written_for_a_mixture_give_megatrons_blend_of_its_shares(make_pair: MakePair, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    counts = {"a": 200, "b": 60, "c": 30}
    prefixes = [make_pair(name, lengths=random.integers(1, 60, count).tolist()) for name, count in counts.items()]
    words = ("--train=0:0.8", "--valid=0.8:0.9", "--test=0.9:1", f"--output={tmp_path}/mixed")
    assert write_mixture(["--alpha=0.3", *words, "--", *prefixes]) == 0
    tokens = [Path(f"{prefix}.bin").stat().st_size // 2 for prefix in prefixes]
    sizes = (500, 40, 30)
    theirs = megatron((prefixes, [count**0.3 for count in tokens]), sizes, tmp_path, 16, 1234)
    files = {f"{split}_weighted_split_paths_path": f"{tmp_path}/mixed.{split}.txt" for split in SPLITS}
    ours = build_datasets(options_for(seq_length=16, **files), *sizes)
    for one, other in zip(theirs, (ours.train, ours.valid["valid"], ours.test["test"]), strict=True):
        assert_equal(one, other)


def test_what_is_shown_of_a_training_is_what_megatrons_blend_serves(
    make_pair: MakePair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(6)
    prefixes = [
        make_pair(name, lengths=random.integers(1, 60, count).tolist()) for name, count in (("a", 90), ("b", 20))
    ]
    theirs = megatron((prefixes, [0.6, 0.4]), (400, 0, 0), tmp_path, 16, 1234)[0]
    shape = ("--num-layers=2", "--hidden-size=32", "--num-attention-heads=4", "--vocab-size=9000", "--lr=1e-3")
    length = (
        "--seq-length=16",
        "--micro-batch-size=1",
        "--global-batch-size=8",
        "--train-samples=400",
        "--eval-iters=0",
    )
    words = ("--json", "--", *shape, *length, "--split=8,1,1", "--data-path", "0.6", prefixes[0], "0.4", prefixes[1])
    assert inspect(["--iterations=1:50", *words]) == 0
    samples = json.loads(capsys.readouterr().out)["samples"]["samples"]
    for place, one in enumerate(samples):
        assert one["data"] == prefixes[theirs.dataset_index[place]]
        assert one["tokens"] == [*theirs[place]["tokens"].tolist(), int(theirs[place]["labels"][-1])]


def test_megatron_reads_what_we_write(make_pair: MakePair) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    documents = [[3, 1, 4], [1, 5, 9, 2, 6], [5]]
    theirs = IndexedDataset(make_pair("ours", documents))
    assert [theirs[number].tolist() for number in range(len(theirs))] == documents


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize(
    "lengths",
    [
        [200],  # one document
        [0, 0, 40, 0, 1, 0, 0, 90, 0],  # empty ones: first, last, in rows
        [17] * 12,  # documents that end where samples do
        np.random.default_rng(4).integers(0, 50, 3000).tolist(),
    ],
    ids=["one", "empty", "aligned", "many"],
)
def test_sample_indices_of_awkward_documents_are_megatrons(lengths: list[int], kind: str) -> None:
    from megatron.core.datasets import helpers

    sizes = np.array(lengths, np.int32)
    documents = np.tile(np.arange(len(sizes), dtype=np.int32), 3)
    np.random.RandomState(5).shuffle(documents)
    tokens = int(sizes.sum())
    for sequence_length in (2, 16, 17, 64):
        build = getattr(helpers, f"build_sample_idx_{kind}")
        theirs = build(sizes, documents, sequence_length, 3, tokens, True, 1)
        ours = build_sample_index(sizes, documents, len(theirs) - 1, sequence_length, np.dtype(kind))
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("datasets", "samples"), [(63, 5_000), (65, 5_000), (700, 3_000)])
@pytest.mark.parametrize("shape", ["alike", "random", "few large ones"])
def test_a_blend_of_hundreds_is_megatrons(datasets: int, samples: int, shape: str) -> None:
    from megatron.core.datasets import helpers

    random = np.random.default_rng(datasets)
    weights = {"alike": np.ones(datasets), "random": random.random(datasets) + 0.01}.get(shape)
    weights = random.random(datasets) ** 8 + 1e-5 if weights is None else weights
    shares = np.array(normalized(weights.tolist()))
    dataset, place = np.zeros(samples, np.int16), np.zeros(samples, np.int64)
    helpers.build_blending_indices(dataset, place, shares, datasets, samples, False)
    ours = blend_order(shares.tolist(), samples)
    assert np.array_equal(ours[0], dataset) and np.array_equal(ours[1], place)
