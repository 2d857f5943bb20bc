"""Changes to another training are refused with both values, or allowed by one option and recorded."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.distributed.pool import Pool
from tests.distributed.whole_training import VOCABULARY, Seen, run_training, write_corpus
from trainer.formats.checkpoint.manifest import Manifest, read_manifest

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_corpus(tmp_path_factory.mktemp("corpus")))


@pytest.fixture(scope="module")
def saved(pool: Pool, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint at iteration 2 of 4."""
    folder = tmp_path_factory.mktemp("saved")
    (begun,) = train(pool, corpus, save=str(folder), load=str(folder), exit_interval=2)
    assert begun.status == 0, begun.errors
    return folder


def train(pool: Pool, corpus: Path, **options: Any) -> list[Seen]:
    return pool.run(1, run_training, {"data_path": [str(corpus)], "train_iters": 4, **options})


def manifest_at(folder: Path, iteration: int) -> Manifest:
    return read_manifest(folder / f"global_step{iteration}")


def copied(corpus: Path, folder: Path) -> Path:
    """Return the same data at another place, under another name."""
    for suffix in (".bin", ".idx"):
        shutil.copy(corpus.with_suffix(suffix), folder / f"elsewhere{suffix}")
    return folder / "elsewhere"


@pytest.mark.parametrize(
    ("changed", "name", "complaint"),
    [
        ({"seed": 5}, "seed", "--seed 1234 -> 5"),
        ({"seq_length": 8, "max_position_embeddings": 16}, "seq_length", "--seq-length 16 -> 8"),
        ({"no_bias_gelu_fusion": True}, "gelu", "--no-bias-gelu-fusion) tanh -> erf"),
        ({"layernorm_epsilon": 1e-6}, "layernorm_epsilon", "--layernorm-epsilon 1e-05 -> 1e-06"),
        (
            {"apply_residual_connection_post_layernorm": True},
            "apply_residual_connection_post_layernorm",
            "--apply-residual-connection-post-layernorm False -> True",
        ),
        ({"split": "50,50,0"}, "train_data", "documents 0 to 48 of 60"),
    ],
)
def test_what_makes_another_training_is_refused_naming_both_values(
    pool: Pool, corpus: Path, saved: Path, changed: dict[str, Any], name: str, complaint: str
) -> None:
    (refused,) = train(pool, corpus, load=str(saved), **changed)
    assert (refused.status, refused.losses) == (1, [])
    assert complaint in refused.errors and refused.errors.count("\n") == 1
    assert f"--allow-changed {name} " in refused.errors


def test_what_is_let_through_by_name_is_said_once_and_stays_on_record(
    pool: Pool, corpus: Path, saved: Path, tmp_path: Path
) -> None:
    again = {"save": str(tmp_path), "seed": 5}
    (refused,) = train(pool, corpus, load=str(saved), **again, allow_changed=["train_data"])
    assert "--seed 1234 -> 5" in refused.errors  # another name lets nothing through
    (taken,) = train(pool, corpus, load=str(saved), **again, allow_changed=["seed"], exit_interval=3)
    assert taken.status == 0 and len(taken.losses) == 1
    assert taken.output.count("--seed 1234 -> 5\n") == 1
    (on,) = train(pool, corpus, load=str(tmp_path), **again)  # it is this training's seed now
    assert on.status == 0 and " -> " not in on.output
    began, changed, resumed = manifest_at(tmp_path, 4).history
    assert (began.kind, began.iteration, began.changes, began.allowed_by) == ("began", 0, (), None)
    assert (changed.kind, changed.iteration, changed.allowed_by) == ("resumed", 2, "--allow-changed seed")
    assert changed.loaded_from == str(saved / "global_step2")
    assert ("seed", 1234, 5) in [(one.name, one.before, one.now) for one in changed.changes]
    assert (resumed.iteration, resumed.changes, resumed.allowed_by) == (3, (), None)


def test_data_that_is_moved_and_renamed_is_the_same_and_one_edited_token_makes_it_another(
    pool: Pool, corpus: Path, saved: Path, tmp_path: Path
) -> None:
    moved = copied(corpus, tmp_path)
    (taken,) = train(pool, moved, load=str(saved), tokenizer_name_or_path=None)
    assert taken.status == 0 and " -> " not in taken.output
    tokens = numpy.memmap(moved.with_suffix(".bin"), "<u2", "r+")
    tokens[len(tokens) // 2] ^= 1
    tokens.flush()
    (refused,) = train(pool, moved, load=str(saved))
    assert refused.status == 1 and "documents 0 to 48 of 60" in refused.errors
    assert refused.errors.count("xxh64") == 2


def test_a_start_that_names_no_tokenizer_has_no_later_one_take_another(
    pool: Pool, corpus: Path, tmp_path: Path
) -> None:
    """The size of the vocabulary is given, so that a start can do without."""
    for name in ("own", "other"):
        spec = {"model": {"vocab": {f"{name} {number}": number for number in range(VOCABULARY)}}}
        (tmp_path / f"{name}.json").write_text(json.dumps(spec))
    own, other = ({"tokenizer_name_or_path": str(tmp_path / f"{name}.json")} for name in ("own", "other"))
    folder = {"save": str(tmp_path / "saved"), "load": str(tmp_path / "saved"), "exit_after_iters": 1}
    for given in (own, {}):
        (taken,) = train(pool, corpus, **folder, **given)
        assert taken.status == 0, taken.errors
    (refused,) = train(pool, corpus, **folder, **other)
    assert refused.status == 1 and "the tokenizer" in refused.errors
    (taken,) = train(pool, corpus, **folder, **own)
    assert taken.status == 0 and " -> " not in taken.output


def test_a_longer_training_that_would_shuffle_the_data_anew_is_refused(pool: Pool, corpus: Path, saved: Path) -> None:
    """48 documents of 20 to 119 tokens give some 200 samples of 16: 400 samples need more than one pass."""
    (refused,) = train(pool, corpus, load=str(saved), train_iters=50, override_lr_scheduler=True)
    assert refused.status == 1 and re.search(r"order .*\b16\b", refused.errors)
    (longer,) = train(pool, corpus, load=str(saved), train_iters=5, override_lr_scheduler=True)
    assert longer.status == 0 and len(longer.losses) == 3
    assert "--train-iters 4 -> 5\n" in longer.output


def test_a_manifest_says_what_its_training_is_who_saved_it_and_the_loss(pool: Pool, corpus: Path, saved: Path) -> None:
    manifest = manifest_at(saved, 2)
    assert manifest.training["seed"] == 1234 and manifest.training["gelu"] == "tanh"
    assert manifest.settings["clip_grad"] == 1.0 and manifest.settings["global_batch_size"] == 8
    assert "loss_scale" not in manifest.settings and "sgd_momentum" not in manifest.settings
    assert manifest.saved is not None and manifest.saved.user and manifest.saved.host
    (again,) = train(pool, corpus, exit_interval=2)
    assert manifest.loss == again.losses[1]


def test_a_checkpoint_of_an_older_trainer_is_taken_and_what_it_does_not_say_is_said_once(
    pool: Pool, corpus: Path, saved: Path, tmp_path: Path
) -> None:
    shutil.copytree(saved, tmp_path / "old")
    path = tmp_path / "old" / "global_step2" / "manifest.json"
    said = json.loads(path.read_text())
    of_the_first = {key: value for key, value in said.items() if key not in ("training", "settings", "history")}
    path.write_text(json.dumps({**of_the_first, "schema_version": 1}))
    (taken,) = train(pool, corpus, load=str(tmp_path / "old"), seed=5)
    assert taken.status == 0
    (line,) = [one for one in taken.output.splitlines() if "not compared" in one]
    assert "seed" in line
