"""The controls of an RL run as a recipe: the rewards, the steps, and what is refused."""

import argparse
import importlib
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import write_json, write_jsonl, write_text
from mathrl.core.paths import WORKTREE_NOTE
from mathrl.grading import Verdict
from mathrl.params.load import dump_yaml, read_yaml
from mathrl.params.recipe_steps import EvaluateStep, RlStep, SftStep
from mathrl.params.run import Reward
from mathrl.recipes.controls import (
    CONTROLS,
    OWN_MODELS,
    control_rewards,
    equal_steps,
    find_controlled,
    write_control_recipe,
)
from mathrl.recipes.graph import graph
from mathrl.recipes.recipe import load_recipe, recipe_files, step_overrides
from mathrl.rewards import RewardInput, build_reward
from mathrl.rewards.cascade import noisy_verdict
from mathrl.stages import command

ROOT = Path(__file__).parents[2]
KL = 'rl.kl={"type": "loss", "coef": 0.5, "controller": null, "reset_every": null, "estimator": "k3"}'
ROWS = [
    {"step": step, "reward/accuracy": accuracy, "trained_tokens": 5000, "response_length": 12.0}
    for step, accuracy in enumerate((0.5, 0.7, 0.9), 1)
]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    write_jsonl(tmp_path / "reports/rl/metrics.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rewards_of(name: str, reward: Reward | None = None, rate: float = 0.6) -> list[dict[str, Any]]:
    parts, routes = control_rewards(reward or Reward(), rate)[name]
    assert routes == "reward.routes={}"
    values: list[dict[str, Any]] = json.loads(parts.partition("=")[2])
    return values


def parse(text: str) -> argparse.Namespace:
    """The arguments of a stage's command, which begins python -m mathrl.stages.STAGE."""
    _, _, module, *words = shlex.split(text)
    return command.parse(module, importlib.import_module(module).work, words)


def test_the_recipe_has_a_step_per_control_and_the_claim(checkout: Path) -> None:
    name, folder = write_control_recipe("rl", 2)
    recipe = load_recipe(name)
    assert (name, recipe.seeds, folder) == ("controls-rl", (0, 1), Path())
    assert [step for step in recipe.steps if step in CONTROLS] == list(CONTROLS)
    evaluated, thinking = recipe.steps["controls"], recipe.steps["thinking"]
    assert isinstance(evaluated, EvaluateStep) and isinstance(thinking, EvaluateStep)
    assert evaluated.models == ("sft", "random", "form", "majority", "inverted", "more_sft", "worked", "rl")
    assert (thinking.models, thinking.set) == (("sft",), ('prompt.response_prefix="<think>"',))
    rl = recipe.steps["rl"]
    assert isinstance(rl, RlStep) and (rl.start, rl.data, rl.difficulty) == ("sft", ("mix",), "difficulty")
    for arm in ("random", "form", "majority", "inverted"):
        step = recipe.steps[arm]
        assert isinstance(step, RlStep) and step.model_copy(update={"set": ()}) == rl, "the same run but for its reward"
        assert {item.split(".")[0] for item in step.set} == {"reward"}
    worked, sft = recipe.steps["worked"], recipe.steps["sft"]
    assert worked == sft.model_copy(update={"set": (*sft.set, "sft.terse_share=0")}), (
        "the start's but for the terse ones"
    )
    claim = recipe.claim
    assert claim and (claim.start, claim.model, claim.evaluations) == ("sft", "rl", ("controls", "thinking"))
    assert parse(graph(name, recipe, ROOT)["summary"]["cmd"]).claim == [
        "start=sft",
        "model=rl",
        "of=controls",
        "of=thinking",
    ]
    assert "sft" not in graph(name, recipe, ROOT)["summary"]["deps"], "names of a claim are no files"


def test_one_seed_of_a_pipeline_is_controlled_on_its_own_models(checkout: Path) -> None:
    """No step trains the run again: the graph reads the pipeline's models, mixture and responses as they are."""
    name, folder = write_control_recipe("rl", 1)
    assert (name, folder) == (OWN_MODELS, Path())
    recipe = load_recipe(name)
    assert set(recipe.steps) == {*CONTROLS, "controls"} and not recipe.seeds
    stages = graph(name, recipe, ROOT)
    options = {step: parse(stage["cmd"]) for step, stage in stages.items()}
    for arm in ("random", "form", "majority", "inverted"):
        files = (options[arm].start, options[arm].difficulty, options[arm].data)
        assert files == (Path("models/sft"), Path("data/difficulty/summary.json"), ["data/mixture/train.jsonl"])
    assert (options["more_sft"].start, options["worked"].start) == (Path("models/sft"), Path("models/base"))
    assert options["thinking"].model == ["sft=models/sft"] and "sft" not in str(options["controls"].model[0])
    tests = [f"{step}=pipelines/recipes/{name}/{step}/report" for step in ("controls", "thinking")]
    assert options["summary"].evaluated == ["evaluate=reports/evaluate", *tests]
    assert "reports/evaluate" in stages["summary"]["deps"]
    assert options["summary"].claim[:3] == ["start=sft", "model=rl", "of=evaluate"], "and base apart"
    assert options["summary"].claim[-1] == "apart=base"
    only = load_recipe(write_control_recipe("rl", 1, ["thinking"])[0])
    assert set(only.steps) == {"thinking"} and only.claim and only.claim.evaluations == ("reports/evaluate", "thinking")


def test_one_seed_of_a_run_under_runs_is_controlled_in_its_folder(checkout: Path) -> None:
    shutil.copytree(checkout / "params", checkout / "runs/odd/params")
    write_jsonl(checkout / "runs/odd/reports/rl/metrics.jsonl", ROWS[:1])
    name, folder = write_control_recipe("odd", 1, ["random"])
    assert (name, folder) == (OWN_MODELS, Path("runs/odd"))
    (random,) = (step for step in load_recipe(name, folder / "params").steps.values() if step.stage == "rl")
    assert '"false_positives": 0.5' in random.set[0], "the rate of that run"
    assert not (checkout / "params/recipes" / f"{name}.yaml").exists()


def test_worked_needs_a_start_that_was_taught_to_answer_at_once(checkout: Path) -> None:
    recipe = load_recipe(write_control_recipe("rl", 2, (), ["sft.terse_share=0"])[0])
    assert "worked" not in recipe.steps and "more_sft" in recipe.steps


def test_a_run_straight_from_an_instruct_model_has_no_demonstrations_to_go_on_with(checkout: Path) -> None:
    """Its method is grpo: the split sft is empty, and the other controls run all the same."""
    chain = {"type": "generated", "name": "chain", "generator": "chain", "counts": {"rl": 200, "dev": 20, "test": 50}}
    write_json(checkout / "params/curate.yaml", {"sources": [chain]})
    write_json(checkout / "params/sft.yaml", {"steps": 0})
    recipe = load_recipe(write_control_recipe("rl", 2)[0])
    assert "more_sft" not in recipe.steps and {"random", "form", "majority", "inverted"} < set(recipe.steps)
    assert "more_sft" not in load_recipe(write_control_recipe("rl", 1)[0]).steps
    name, _ = write_control_recipe("rl", 2, ["more_sft"])
    with pytest.raises(UserError, match=r"steps\.more_sft: it learns from the split sft, and nothing fills that"):
        load_recipe(name)


def test_random_rewards_have_the_rate_of_the_run_and_know_nothing() -> None:
    """0.6 of the right and 0.6 of the wrong responses are rewarded: over 4,000 draws within 4 standard errors."""
    (part,) = rewards_of("random")
    options = load_params(overrides=[f"reward.parts={json.dumps([part])}"]).reward.parts[0].options
    for correct in (True, False):
        verdict = Verdict(correct, "5", "", "", 0.0)
        rewarded = sum(noisy_verdict(verdict, f"{n}", "5", "5", options) for n in range(4000)) / 4000
        assert abs(rewarded - 0.6) < 4 * (0.24 / 4000) ** 0.5


def test_inverted_rewards_are_one_minus_the_truth() -> None:
    reward = build_reward({"parts": rewards_of("inverted")})
    right, wrong = RewardInput("<answer>5</answer>", ("5",)), RewardInput("<answer>6</answer>", ("5",))
    assert [result.overall for result in reward.score([right, wrong])] == [0.0, 1.0]


def test_form_alone_is_the_parts_without_truth_and_the_vote_keeps_them() -> None:
    assert rewards_of("form") == [{"type": "r1_tags"}]
    parts = [{"type": "accuracy", "weight": 0.75}, {"type": "format_lines", "weight": 0.25, "options": {"lines": 0.4}}]
    reward = Reward.model_validate({"parts": parts})
    assert rewards_of("form", reward) == [parts[1]]
    assert rewards_of("majority", reward) == [{"type": "majority", "weight": 0.75}, parts[1]]
    assert [part["type"] for part in rewards_of("random", reward)] == ["noisy_accuracy"]


def test_more_sft_takes_the_computation_of_rl(checkout: Path) -> None:
    """By hand: 3 steps x (5,000 + 12 x 512 / 3) = 21,144 tokens, and 2,048 tokens per SFT step: 10.3 steps."""
    params = load_params()
    assert params.rl.prompts_per_step * params.rl.group_size == 512 and params.sft.tokens_per_step == 2048
    assert equal_steps(ROWS, params.rl, params.sft) == 11
    recipe = load_recipe(write_control_recipe("rl", 1, ["more_sft"], ["sft.tokens_per_step=4096"])[0])
    more = recipe.steps["more_sft"]
    assert isinstance(more, SftStep) and (more.start, more.data) == ("sft", ("sft",))
    assert more.set == ("sft.steps=6",) and not {"random", "thinking"} & set(recipe.steps)


def test_a_run_under_runs_brings_its_own_parameters_and_splits(checkout: Path) -> None:
    shutil.copytree(checkout / "params", checkout / "runs/odd/params")
    write_jsonl(checkout / "runs/odd/reports/rl/metrics.jsonl", ROWS)
    for section, change in (("rl", {"kl": {"coef": 0.5}}), ("curate", {"on_bad_row": "reject"}), ("run", {"seed": 7})):
        file = checkout / f"runs/odd/params/{section}.yaml"
        write_text(file, dump_yaml((read_yaml(file) if file.exists() else {}) | change))
    recipe = load_recipe(write_control_recipe("odd", 2)[0])
    assert set(recipe.set) == {KL, 'curate.on_bad_row="reject"'} and recipe.curated == "splits"
    assert "curate.on_bad_row" in step_overrides(recipe, "splits")[0]
    assert recipe.claim and load_params(overrides=step_overrides(recipe, "random")).rl.kl_coef == 0.5


def test_a_recipe_run_with_overrides_is_named_by_its_folder(checkout: Path) -> None:
    """Its overrides, its preset's parameters and its seed's metrics; not those of the checkout's own run."""
    folder = checkout / "runs/sft-rl-steps_30-12ab34cd"
    shutil.copytree(checkout / "params", folder / "params")
    write_json(folder / WORKTREE_NOTE, {"overrides": ["rl.steps=30"], "made": 0.0, "commit": "", "run": "sft-rl"})
    file = folder / "params/recipes/sft-rl.yaml"
    write_text(file, dump_yaml(read_yaml(recipe_files()["sft-rl"]) | {"overrides": ["rl.steps=30"]}))
    for section, change in (("rl", {"kl": {"coef": 0.5}}), ("curate", {"on_bad_row": "reject"})):
        file = folder / f"params/{section}.yaml"
        write_text(file, dump_yaml((read_yaml(file) if file.exists() else {}) | change))
    write_jsonl(folder / "pipelines/recipes/sft-rl/rl/report/metrics.jsonl", ROWS)
    write_jsonl(checkout / "pipelines/recipes/sft-rl/rl/report/metrics.jsonl", [ROWS[0]])
    own, other = find_controlled(f"{folder.name}/rl"), find_controlled("sft-rl/rl")
    assert (own.rate, own.params.rl.steps, own.params.rl.kl_coef) == (0.7, 30, 0.5)
    assert (other.rate, other.params.rl.steps) == (0.5, load_params().rl.steps)
    recipe = load_recipe(write_control_recipe(f"{folder.name}/rl", 1)[0])
    assert set(recipe.set) == {KL, 'curate.on_bad_row="reject"'} and recipe.curated == "splits"
    assert recipe.overrides == ("rl.steps=30",) and recipe.claim and recipe.claim.model == "rl"


def test_a_recipes_step_keeps_what_it_needs_alone(checkout: Path) -> None:
    for seed in range(3):
        write_jsonl(checkout / f"pipelines/recipes/study/grpo-s{seed}/report/metrics.jsonl", ROWS * 10)
    controlled = find_controlled("study/grpo")
    assert set(controlled.recipe.steps) == {"base", "sft", "grpo"} and controlled.rate == 0.7
    recipe = load_recipe(write_control_recipe("study/grpo", 3)[0])
    more = recipe.steps["more_sft"]
    steps = equal_steps(ROWS * 10, controlled.params.rl, controlled.params.sft)
    assert isinstance(more, SftStep) and more.set == (f"sft.steps={steps}",), "of one seed, not of three"


def test_what_cannot_be_controlled_is_refused_with_what_to_give(checkout: Path) -> None:
    def refusal(*arguments: Any) -> str:
        with pytest.raises(UserError) as caught:
            write_control_recipe(*arguments)
        return str(caught.value)

    assert "no such run; give rl" in refusal("nothing", 1)
    assert "no RL step of recipe study; RL steps: online_rft, grpo" in refusal("study/sft", 1)
    assert "run it first, its controls take their rate from them" in refusal("study/grpo", 1)
    assert "no control radnom; controls: random, form" in refusal("rl", 1, ["radnom"])
    for seed in range(3):
        write_jsonl(checkout / f"pipelines/recipes/study/grpo_process-s{seed}/report/metrics.jsonl", ROWS)
    assert "rewards are of reasoning steps" in refusal("study/grpo_process", 1)
    assert not list((checkout / "params/recipes").glob("controls-*"))


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ("{start: sft, model: rl, evaluations: [tset]}", "claim.evaluations: 'tset' is not an evaluate step"),
        ("{start: sft, model: dpo, evaluations: [test]}", "claim.model: 'dpo' is not evaluated by test; models: base"),
    ],
)
def test_a_claim_names_evaluations_and_models_that_exist(checkout: Path, claim: str, said: str) -> None:
    file = checkout / "params/recipes/sft-rl.yaml"
    write_text(file, recipe_files()["sft-rl"].read_text() + f"claim: {claim}\n")
    with pytest.raises(UserError) as caught:
        load_recipe("sft-rl")
    assert said in str(caught.value)
