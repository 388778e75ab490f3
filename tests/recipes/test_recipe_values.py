"""What recipes train with: on the demo's random weights always the same, on a pretrained model what suits it."""

import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mathrl.compose.experiment import split_choices
from mathrl.compose.load import Layers, read_layers
from mathrl.core.errors import UserError
from mathrl.params import Params
from mathrl.params.load import dump_yaml, parse_yaml
from mathrl.params.run import PretrainedModel
from mathrl.params.schema import READS
from mathrl.planning.final_values import judge
from mathrl.recipes.recipe import load_recipe, recipe_files, recipe_names, step_params

ROOT = Path(__file__).parents[2]
PARAMS = ROOT / "params"
STEPS = json.loads(Path(__file__).with_name("recipe_steps.json").read_text("utf-8"))
QWEN = ("model.base.type=pretrained", "model.base.path=Qwen/Qwen2.5-0.5B")


@pytest.fixture(scope="module", autouse=True)
def files_read_once() -> Any:
    """The same files are read for every recipe."""
    with pytest.MonkeyPatch.context() as patch:
        once = cache(read_layers)
        patch.setattr("mathrl.recipes.recipe.read_layers", once)
        patch.setitem(globals(), "read_layers", once)
        yield


def flat(values: Any, path: str = "") -> dict[str, Any]:
    if isinstance(values, dict) and values:
        inner = [flat(value, f"{path}.{key}" if path else key) for key, value in values.items()]
        return {key: value for part in inner for key, value in part.items()}
    return {path: values}


def shown(params: Params) -> dict[str, Any]:
    return flat(params.model_dump(mode="json", by_alias=True))


@pytest.mark.parametrize("name", recipe_names(PARAMS))
def test_every_step_on_the_demos_model_has_the_values_that_the_results_in_the_docs_were_made_with(name: str) -> None:
    """recipe_steps.json: what each step changes in params/, as at ff67e22."""
    layers = read_layers(PARAMS)
    demo = shown(layers.params())
    recipe = load_recipe(name, PARAMS)
    for step in recipe.steps:
        resolved = shown(step_params(recipe, step, layers))
        read = READS[recipe.steps[step].stage]
        resolved = {key: value for key, value in resolved.items() if key.split(".")[0] in read}
        changed = {key: value for key, value in resolved.items() if key not in demo or demo[key] != value}
        changed |= {key: "gone" for key in demo if key not in resolved and key.split(".")[0] in read}
        assert changed == STEPS.pop(f"{name}/{step}"), step
    assert not [step for step in STEPS if step.startswith(f"{name}/")]


def pretrained(layers: Layers) -> tuple[str, ...]:
    return () if layers.values["model"]["base"].get("type") == "pretrained" else QWEN


@pytest.mark.parametrize("preset", [None, "math", "dapo", "qwen2.5-0.5b-gsm8k", "llama-1b-lora-16gb"])
def test_on_a_pretrained_model_every_step_gets_what_suits_it_or_is_refused_with_the_reason(preset: str | None) -> None:
    layers = read_layers(PARAMS, preset)
    taken = 0
    for name in recipe_names(PARAMS):
        try:
            recipe = load_recipe(name, PARAMS, pretrained(layers), preset)
        except UserError as error:
            lines = str(error).split(f"{recipe_files(PARAMS)[name]}: ")[1:]
            assert lines and all(line.startswith("steps.") and "{times" not in line for line in lines), lines
            continue
        taken += 1
        for step, kind in recipe.steps.items():
            params = step_params(recipe, step, layers)
            assert params.model.base.type == "pretrained" or "model" not in READS[kind.stage]
            assert judge(params, [kind.stage]) == ([], [])
            if kind.stage == "rl":
                most = 3e-5 if params.rl.lora is None else 3e-4
                assert params.rl.optimizer.lr <= most and params.rl.max_tokens >= 128, (name, step)
    data = {"math": 1, "dapo": 3, "qwen2.5-0.5b-gsm8k": 3}
    refused = len(recipe_names(PARAMS)) - taken  # distillation, and what learns from a split sft that nothing fills
    assert refused == data[preset] if preset in data else refused


def test_a_recipe_that_writes_a_rate_for_random_weights_into_set_is_refused(tmp_path: Path) -> None:
    written = parse_yaml(recipe_files(PARAMS)["deepseek-r1"].read_text(), "the recipe")
    for step in ("rl_1", "rl_2"):
        assert "rl.optimizer.lr=0.003" in written["steps"][step].pop("set_fresh")
        written["steps"][step]["set"].append("rl.optimizer.lr=0.003")
    folder = copy_of_params(tmp_path)
    (folder / "recipes" / "mine.yaml").write_text(dump_yaml(written))
    preset, share = "qwen2.5-0.5b-gsm8k", ("curate.sft_share=0.25",)
    with pytest.raises(
        UserError,
        match=r"steps\.rl_1: rl\.optimizer\.lr is 0\.003, 3,000 times .*steps\.rl_2: rl\.optimizer\.lr is 0\.003",
    ):
        load_recipe("mine", folder, share, preset)
    typed = load_recipe("mine", folder, (*share, "rl.optimizer.lr=0.003"), preset)
    assert step_params(typed, "rl_1", read_layers(folder, preset)).rl.optimizer.lr == 0.003, "somebody wants it"


def copy_of_params(target: Path) -> Path:
    folder = Path(shutil.copytree(PARAMS, target / "params"))
    (folder / "recipes").mkdir()
    return folder


def test_a_relative_value_follows_what_stands_before_it(tmp_path: Path) -> None:
    folder = copy_of_params(tmp_path)
    recipe = {
        "description": "mine",
        "set": ["rl.optimizer.lr=2e-6", "rl.steps={times: 0.5}"],
        "steps": {
            "rl": {"stage": "rl", "start": "base", "set": ["rl.optimizer.lr={times: 10}", "rl.optimizer.type=adamw"]}
        },
    }
    (folder / "recipes" / "mine.yaml").write_text(dump_yaml(recipe))
    rl = step_params(load_recipe("mine", folder), "rl", read_layers(folder)).rl
    assert (rl.optimizer.lr, rl.steps) == (2e-5, 25)
    typed = load_recipe("mine", folder, ("rl.optimizer.lr=1e-6",))
    assert step_params(typed, "rl", read_layers(folder)).rl.optimizer.lr == 1e-6
    recipe["set"] = ["rl.advantage={times: 2}"]
    (folder / "recipes" / "mine.yaml").write_text(dump_yaml(recipe))
    with pytest.raises(UserError, match=r"advantage\.times: unknown parameter"):
        load_recipe("mine", folder)


def test_the_r1_tutorials_command_trains_a_pretrained_model_at_its_rates(tmp_path: Path) -> None:
    """docs/start/sft-rl-r1.md: the recipe with data, model and hardware on the command line."""
    page = (ROOT / "docs" / "start" / "sft-rl-r1.md").read_text("utf-8")
    (words,) = re.findall(r"^mathrl recipe deepseek-r1 (data=.*) --dry-run$", page, re.M)
    folder = copy_of_params(tmp_path)
    recipe = load_recipe("deepseek-r1", folder, tuple(words.split()))
    layers = read_layers(folder, None, None, split_choices(words.split())[0])
    for step, kind in recipe.steps.items():
        params = step_params(recipe, step, layers)
        assert isinstance(params.model.base, PretrainedModel)
        if kind.stage == "rl":
            assert (params.rl.optimizer.lr, params.rl.optimizer.type, params.rl.max_tokens) == (1e-6, "adamw", 512)
        if kind.stage == "sft":
            assert (params.sft.optimizer.lr, params.sft.optimizer.type) == (1e-5, "adamw")
        if kind.stage == "sample":
            assert params.sample.max_tokens == 512
