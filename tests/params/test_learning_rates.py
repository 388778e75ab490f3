"""Default learning rates, made for random weights, are refused on pretrained ones; any other rate is taken."""

from collections.abc import Sequence

import pytest

from mathrl.core.errors import UserError
from mathrl.params.learning_rates import check_learning_rates, unfit_rates
from mathrl.params.load import load_params
from mathrl.params.recipe import load_recipe

PRETRAINED = "model.base={type: pretrained, path: Qwen/Qwen2.5-%s}"


def refusal(stage: str, *overrides: str, size: str = "1.5B", recipe: Sequence[str] = ()) -> str:
    """What is said of the stage; empty if nothing is. `recipe`: what a recipe sets."""
    params = load_params(overrides=[PRETRAINED % size, *overrides])
    return "; ".join(unfit_rates(params, stage, load_params(overrides=recipe) if recipe else None))


@pytest.mark.parametrize(
    ("stage", "overrides", "size", "advice"),
    [
        ("rl", [], "1.5B", "rl.lr=1e-6 with rl.optimizer.type=adamw"),
        ("rl", [], "32B", "rl.lr=1e-6 with rl.optimizer.type=adamw"),
        ("rl", ["rl.lora={}"], "1.5B", "rl.lr=1e-5 with rl.optimizer.type=adamw, the usual rate for adapters"),
        (
            "sft",
            [],
            "7B",
            "sft.lr=1e-5 with sft.optimizer.type=adamw, the usual rate for all weights of a model of 7 b",
        ),
        ("sft", [], "72B", "sft.lr=2e-6"),
        ("sft", ["sft.lora={}"], "7B", "sft.lr=1e-4"),
        ("controls", ["sft.steps=0"], "7B", "sft.lr=1e-5"),
        ("dpo", [], "7B", "dpo.lr=5e-7, the usual rate"),
        ("process_reward_model", [], "7B", "reward_model.lr=1e-5"),
    ],
)
def test_a_default_rate_is_refused_with_the_usual_one(stage: str, overrides: list[str], size: str, advice: str) -> None:
    sentence = refusal(stage, *overrides, size=size)
    assert advice in sentence and f"would ruin the pretrained Qwen/Qwen2.5-{size}" in sentence
    assert refusal(stage, *overrides, *advice.split(",")[0].split(" with "), size=size) == ""


def test_each_rate_of_ppo_is_looked_at() -> None:
    ppo = ["rl.advantage=gae", "rl.critic={}"]
    assert "rl.critic.lr is 0.001" in refusal("rl", *ppo, "rl.lr=1e-6")
    assert refusal("rl", *ppo, "rl.lr=1e-6", "rl.critic.lr=1e-5") == ""


def test_a_rate_that_is_set_counts_as_wanted_and_random_weights_keep_theirs() -> None:
    assert refusal("rl", "rl.lr=0.02") == ""
    assert refusal("sft", "sft.steps=0") == "" == refusal("curate") == refusal("evaluate")
    check_learning_rates(load_params(), ["sft", "rl", "controls", "dpo", "reward_model"])


def test_a_recipes_rates_are_those_of_its_own_model() -> None:
    base = PRETRAINED % "1.5B"
    with pytest.raises(UserError) as refused:
        load_recipe("grpo-process", overrides=[base, "sft.lr=1e-5", "reward_model.lr=1e-5"])
    assert "steps.outcome: rl.lr is 0.003, made for random weights" in str(refused.value)
    assert "rl.lr is 0.003" in refusal("rl", "rl.lr=0.003", recipe=["rl.lr=0.003"])
    assert refusal("rl", "rl.lr=0.002", recipe=["rl.lr=0.003"]) == ""
    assert refusal("rl", "rl.lr=0.003", recipe=["rl.lr=0.003", base]) == "", "that recipe was made for it"


def test_a_rate_typed_as_the_default_counts_as_the_default() -> None:
    assert "rl.lr is 0.01" in refusal("rl", "rl.lr=0.01") and refusal("rl", "rl.lr=0.0101") == ""


def test_all_stages_of_a_run_are_named_at_once() -> None:
    with pytest.raises(UserError, match=r"sft\.lr is 0\.02.*; rl\.lr is 0\.01"):
        check_learning_rates(load_params(overrides=[PRETRAINED % "1.5B"]), ["curate", "sft", "rl"])


@pytest.mark.parametrize("preset", ["gsm8k", "math", "math-mixture", "dapo"])
def test_the_data_presets_suit_a_pretrained_model_as_they_are(preset: str) -> None:
    params = load_params(preset=preset, overrides=[PRETRAINED % "1.5B"])
    check_learning_rates(params, ["sft", "rl", "controls"])
    assert (params.rl.lr, params.rl.optimizer.type, params.rl.ema) == (1e-6, "adamw", None)
    assert (params.sft.lr, params.sft.optimizer.type) == (1e-5, "adamw")
