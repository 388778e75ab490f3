"""Rates and lengths that do not suit a pretrained model are refused, whoever wrote them, unless they were typed."""

import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.params.load import stage_params
from mathrl.params.optimizer import MUON_TIMES
from mathrl.params.schema import READS
from mathrl.planning.final_values import RATES, TIMES, check_final_values, judge

PRETRAINED = "model.base={type: pretrained, path: Qwen/Qwen2.5-%s}"
LENGTHS = ("prompt.max_tokens=512", "rl.max_tokens=512", "sample.max_tokens=512", "difficulty.max_tokens=512")
# The rates of the demo's random weights, which its groups keep from any other model.
TOY = (
    "sft.steps=600",
    "sft.optimizer={type: muon, lr: 0.02, adamw_scale: 0.15}",
    "rl.optimizer={type: muon, lr: 0.01, adamw_scale: 0.05}",
    "dpo.optimizer.lr=2e-4",
    "reward_model.optimizer.lr=1e-3",
)
PPO = ("rl.advantage=gae",)
ADAMW = {
    "sft": "sft.optimizer.type=adamw",
    "rl": "rl.optimizer.type=adamw",
    "rl.advantage.critic": "rl.advantage.critic.optimizer.type=adamw",
    "dpo": "dpo.optimizer.type=adamw",
    "reward_model": "reward_model.optimizer.type=adamw",
}
STAGES = {"sft": "sft", "rl": "rl", "rl.advantage.critic": "rl", "dpo": "dpo", "reward_model": "reward_model"}


def refusal(stage: str, *overrides: str, size: str = "1.5B", typed: tuple[str, ...] = ()) -> str:
    """What is said of the stage; empty if nothing is. `typed` are set too, and by a person."""
    params = load_params(overrides=[PRETRAINED % size, *TOY, *LENGTHS, *overrides, *typed])
    return "; ".join(judge(params, [stage], typed)[0])


@pytest.mark.parametrize(
    ("stage", "overrides", "size", "advice"),
    [
        ("rl", [], "1.5B", "rl.optimizer.type=adamw and rl.optimizer.lr=1e-6"),
        ("rl", ["rl.lora={}"], "1.5B", "rl.optimizer.type=adamw and rl.optimizer.lr=1e-5"),
        ("sft", [], "72B", "sft.optimizer.type=adamw and sft.optimizer.lr=2e-6"),
        ("sft", ["sft.lora={}"], "7B", "sft.optimizer.type=adamw and sft.optimizer.lr=1e-4"),
        ("dpo", [], "7B", "dpo.optimizer.lr=5e-7"),
        ("process_reward_model", [], "7B", "reward_model.optimizer.lr=1e-5"),
    ],
)
def test_the_demos_rates_are_refused_with_the_usual_ones(
    stage: str, overrides: list[str], size: str, advice: str
) -> None:
    sentence = refusal(stage, *overrides, size=size)
    assert f"set {advice}" in sentence and f"would ruin Qwen/Qwen2.5-{size}" in sentence
    assert refusal(stage, *overrides, *advice.split(" and "), size=size) == ""


@pytest.mark.parametrize("path", RATES)
@pytest.mark.parametrize("adapters", [False, True])
def test_thirty_times_the_usual_rate_is_the_limit(path: str, adapters: bool) -> None:
    usual = RATES[path].lora if adapters else RATES[path].small
    settings = (*PPO * (path == "rl.advantage.critic"), ADAMW[path], *([f"{path}.lora={{}}"] if adapters else []))
    settings += ("rl.optimizer.lr=1e-6", "rl.optimizer.type=adamw") if path == "rl.advantage.critic" else ()
    assert refusal(STAGES[path], *settings, f"{path}.optimizer.lr={usual * TIMES * 0.99}") == ""
    assert f"{path}.optimizer.lr is" in refusal(STAGES[path], *settings, f"{path}.optimizer.lr={usual * TIMES}")


def test_muon_has_a_usual_rate_of_its_own_and_its_adamw_the_usual_one() -> None:
    muon = ("rl.optimizer.type=muon", "rl.optimizer.adamw_scale=0.1")
    limit = RATES["rl"].small * MUON_TIMES * TIMES
    assert refusal("rl", *muon, f"rl.optimizer.lr={limit * 0.99}") == ""
    assert "times Muon's usual rate" in refusal("rl", *muon, f"rl.optimizer.lr={limit}")
    assert "rl.optimizer.lr x adamw_scale is" in refusal(
        "rl", muon[0], "rl.optimizer.adamw_scale=0.2", f"rl.optimizer.lr={limit * 0.99}"
    )


def test_a_typed_value_is_taken_with_one_warning_and_what_a_typed_mapping_names_is_typed() -> None:
    base = PRETRAINED % "0.5B"
    typed = ["rl.optimizer.lr=0.02", "rl.optimizer.type=adamw", "rl.max_tokens=8"]
    params = load_params(overrides=[base, *LENGTHS, *typed])
    (rate, length) = check_final_values(params, ["rl"], typed)
    assert "rl.optimizer.lr is 0.02, 20,000 times AdamW's usual rate" in rate and rate.endswith(
        "taken, since it was typed"
    )
    assert "rl.max_tokens is 8, too short" in length
    with pytest.raises(UserError, match=r"type it for this run: --set rl\.optimizer\.lr=0\.02"):
        check_final_values(params, ["rl"], ["rl.max_tokens=8"])
    safe = "rl.optimizer={type: adamw, lr: 1e-6}"
    assert refusal("rl", "rl.advantage=gae", typed=("rl.advantage.critic={optimizer: {lr: 0.1}}", safe)) == ""
    assert refusal("rl", "rl.advantage=gae", typed=("rl.critic={lr: 0.1}", safe)) == ""
    critic = ("rl.advantage=gae", "rl.advantage.critic.optimizer.lr=1e-3")
    said = refusal("rl", *critic, typed=("rl.advantage.critic.optimizer.beta1=0.8", safe))
    assert "rl.advantage.critic.optimizer.lr is 0.001" in said


@pytest.mark.parametrize("stage", ["rl", "sample", "difficulty", "evaluate"])
def test_lengths_that_cut_off_answers_and_prompts_are_refused(stage: str) -> None:
    rates = ("rl.optimizer.lr=1e-6", "rl.optimizer.type=adamw", "evaluate.max_tokens=512")
    assert refusal(stage, *rates) == ""
    assert f"{stage}.max_tokens is 8, too short" in refusal(stage, *rates, f"{stage}.max_tokens=8")
    assert "prompt.max_tokens is 64, too short" in refusal(stage, *rates, "prompt.max_tokens=64")
    assert refusal(stage, *rates, typed=(f"{stage}.max_tokens=8",)) == ""


def test_random_weights_keep_the_demos_values_and_stages_without_rates_are_not_judged() -> None:
    assert check_final_values(load_params(), ["sft", "rl", "dpo", "reward_model", "evaluate"]) == []
    assert refusal("sft", "sft.steps=0") == "" == refusal("curate") == refusal("mix")


@pytest.mark.parametrize("stage", READS)
def test_the_judgement_reads_no_section_that_the_stage_does_not(stage: str) -> None:
    params = load_params(overrides=[PRETRAINED % "1.5B", "sft.steps=5", *PPO])
    judge(stage_params(params, stage), [stage])


def test_all_stages_of_a_run_are_named_at_once() -> None:
    with pytest.raises(UserError, match=r"sft\.optimizer\.lr is 0\.02.*; .*rl\.optimizer\.lr is 0\.01"):
        check_final_values(load_params(overrides=[PRETRAINED % "1.5B", *TOY]), ["curate", "sft", "rl"])


def test_sft_of_a_pipeline_that_has_nothing_to_learn_from_is_refused_before_it_starts() -> None:
    stages, alone = ["curate", "sft"], "curate.sources=[{type: file, name: mine, path: rows.jsonl, split: rl}]"
    with pytest.raises(UserError, match=r"sft\.steps is 5: it learns from the split sft, and nothing fills that"):
        check_final_values(load_params(overrides=[alone, "sft.steps=5"]), stages)
    for taught in ("curate.sft_share=0.25", "sft.steps=0"):
        assert check_final_values(load_params(overrides=[alone, "sft.steps=5", taught]), stages) == []
    assert check_final_values(load_params(overrides=[alone, "sft.steps=5"]), ["sft"]) == []  # a step with other data


@pytest.mark.parametrize("preset", ["gsm8k", "math", "math-mixture", "dapo", "gsm8k+dapo"])
def test_the_data_presets_suit_a_pretrained_model_as_they_are(preset: str) -> None:
    params = load_params(preset=preset, overrides=[PRETRAINED % "1.5B"])
    stages = ["sft", "difficulty", "rl", "evaluate", "sample", "dpo", "reward_model"]
    assert check_final_values(params, stages) == []
    assert (params.rl.optimizer.lr, params.rl.optimizer.type, params.rl.ema) == (1e-6, "adamw", None)
    assert (params.sft.optimizer.lr, params.sft.optimizer.type) == (1e-5, "adamw")
