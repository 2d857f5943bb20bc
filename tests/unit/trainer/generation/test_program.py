from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.unit.trainer.convert.hf.conftest import publish as publish  # a fixture
from tests.unit.trainer.convert.hf.conftest import random_model
from trainer.convert.hf import import_program
from trainer.data import tokenizer as bpe
from trainer.generation import program

pytestmark = pytest.mark.usefixtures("alone")

TOKENS = 280
PROMPT = "the cat sat on"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    bpe.train(["the cat sat on the mat, the cat sat on the hat"] * 9, TOKENS).save(str(path))
    return path


def checkpoint_of(published: Path, to: Path) -> Path:
    assert import_program.main([str(published), "--output", str(to), "--make-vocab-size-divisible-by", "64"]) == 0
    return to


@pytest.fixture(scope="module")
def bloom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint that many tests read."""
    folder = tmp_path_factory.mktemp("bloom")
    random_model("bloom", vocab_size=TOKENS).save_pretrained(folder / "published")
    return checkpoint_of(folder / "published", folder / "checkpoints")


def generated(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert program.main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)["generated"]


def theirs(published: Path, tokenizer: Path, prompt: str, new_tokens: int) -> list[int]:
    """Return the tokens that transformers' own model generates."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    tokens = torch.tensor([Tokenizer.from_file(str(tokenizer)).encode(prompt).ids])
    model: Any = AutoModelForCausalLM.from_pretrained(published)
    greedy = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}
    found = model.generate(tokens, attention_mask=torch.ones_like(tokens), **greedy)
    return [int(one) for one in found[0, tokens.shape[1] :]]


@pytest.mark.parametrize(
    "family", ["bloom", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("gpt2", "llama"))]
)
def test_the_likeliest_text_is_the_one_that_transformers_generates(
    publish: Any, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    positions = {"n_positions": 40} if family == "gpt2" else {}
    published = publish(family, vocab_size=TOKENS, **positions)
    checkpoints = checkpoint_of(published, tmp_path / "checkpoints")
    words = (str(checkpoints), "--tokenizer", str(tokenizer), "--max-new-tokens", "6")
    first, second = generated(capsys, *words, "--prompt", PROMPT, "--prompt", "the hat")
    assert first["tokens"] == theirs(published, tokenizer, PROMPT, 6)
    assert second["tokens"] == theirs(published, tokenizer, "the hat", 6)
    assert (first["iteration"], first["ended"], first["dtype"]) == (0, "as long as wanted", "float32")


@pytest.mark.parametrize("family", [pytest.param("bloom", marks=pytest.mark.nightly), "llama"])
def test_a_prompt_may_be_longer_than_a_sample_where_no_position_was_learned(
    publish: Any, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    lengths = {"max_position_embeddings": 16} if family == "llama" else {"seq_length": 16}
    published = publish(family, vocab_size=TOKENS, **lengths)
    checkpoints = checkpoint_of(published, tmp_path / "checkpoints")
    long = "the cat sat on the mat, " * 8
    found = generated(capsys, str(checkpoints), "--tokenizer", str(tokenizer), "--max-new-tokens=5", "--prompt", long)
    assert found[0]["prompt_tokens"] > 16 and len(found[0]["tokens"]) == 5
    assert found[0]["tokens"] == theirs(published, tokenizer, long, 5)


def test_each_of_several_prompts_is_gone_on_with_as_if_it_were_alone(
    bloom: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (str(bloom), "--tokenizer", str(tokenizer), "--temperature=2", "--top-k=9", "--max-new-tokens=4")
    both = generated(capsys, *words, "--prompt", "the hat", "--prompt", PROMPT, "--prompt", "the hat")
    assert both == [generated(capsys, *words, "--prompt", one)[0] for one in ("the hat", PROMPT)] + [both[0]]
    assert both[0]["top_k"] == 9 and both[0]["text"]


def test_what_is_drawn_follows_from_the_seed_and_ends_where_the_positions_do(
    publish: Any, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = checkpoint_of(publish("gpt2", vocab_size=TOKENS, n_positions=12), tmp_path / "checkpoints")
    words = (str(checkpoints), "--tokenizer", str(tokenizer), "--prompt", PROMPT, "--temperature", "3")
    first, again, other = (generated(capsys, *words, "--seed", seed)[0] for seed in ("4", "4", "5"))
    assert first == again and first["tokens"] != other["tokens"]
    assert first["ended"] == "no more positions"
    assert first["prompt_tokens"] + len(first["tokens"]) == 12
    assert program.main([*words, "--prompt", "cat " * 20]) == 1
    assert "12 positions" in capsys.readouterr().err


def test_a_text_ends_where_a_document_would(
    publish: Any, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    published = publish("bloom", vocab_size=TOKENS)
    weights = load_file(published / "model.safetensors")
    # Whatever was said, the last LayerNorm gives the embedding of the end of a document, and that row is the longest.
    end = torch.full_like(weights["transformer.ln_f.bias"], 3.0)
    weights["transformer.ln_f.weight"].zero_()
    weights["transformer.ln_f.bias"].copy_(end)
    weights["transformer.word_embeddings.weight"][0] = end
    save_file(weights, published / "model.safetensors", {"format": "pt"})
    checkpoints = checkpoint_of(published, tmp_path / "checkpoints")
    found = generated(capsys, str(checkpoints), "--tokenizer", str(tokenizer), "--prompt", "")[0]
    assert (found["tokens"], found["text"], found["ended"]) == ([], "", "the end of a document")


def test_a_model_without_a_tokenizer_says_that_one_is_needed(bloom: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([str(bloom), "--prompt", "a"]) == 1
    assert "--tokenizer" in capsys.readouterr().err


def test_it_is_alone_whatever_a_launcher_has_told_the_callers_shell(
    bloom: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two ranks would wait for the first one, which never answers at that port."""
    launched = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    dist.destroy_process_group()
    words = (str(bloom), "--tokenizer", str(tokenizer), "--max-new-tokens", "3")
    assert len(generated(capsys, *words, "--prompt", PROMPT)[0]["tokens"]) == 3
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
