"""The documented changes at a resume are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.trainer.recipe.test_options import small
from trainer.recipe.identity import EVALUATION_DATA, SETTINGS, TRAINING, training_facts
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import BY_KEY, parse

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "resuming.md").read_text()


def test_the_page_has_every_fact_of_a_training_with_its_reason() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{fact.name}` | {fact.said} | {fact.why} |" for fact in TRAINING]


def test_the_page_has_every_setting() -> None:
    assert ", ".join(f"`{name}`" for name in (*SETTINGS, *EVALUATION_DATA)) in PAGE


def test_every_setting_is_an_option() -> None:
    assert set(SETTINGS) <= set(BY_KEY)


@pytest.mark.parametrize(
    ("arguments", "form"),
    [([], "tanh"), (["--openai-gelu"], "tanh"), (["--no-bias-gelu-fusion"], "erf")],
)
def test_the_gelu_form_is_the_one_that_the_model_computes(arguments: list[str], form: str) -> None:
    options = parse([*small(), *arguments], 1)
    assert training_facts(options)["gelu"] == form
    assert ModelShape.of(options, Vocabulary(64, 64)).tanh_gelu == (form == "tanh")
