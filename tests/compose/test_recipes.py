"""Every recipe, dry, on a 0.5B, a 1B and a 7B model with each data set: rates, lengths and starts of each step."""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import cycle
from pathlib import Path

import pytest

from mathrl.compose.experiment import Composition
from mathrl.compose.load import Layers, read_layers
from mathrl.compose.names import file_names
from mathrl.core.errors import UserError
from mathrl.params.recipe_steps import POLICIES, Recipe, is_path, references
from mathrl.params.run import PretrainedModel
from mathrl.params.schema import READS, SAMPLING, Params
from mathrl.planning.final_values import TIMES, TRAINED, judge, usual_rate
from mathrl.reading.registry import find
from mathrl.recipes.recipe import curate_of, load_recipe, recipe_files, recipe_names, step_params
from tests.compose.test_random import ANSWERS

PARAMS = Path(__file__).parents[2] / "params"
MODELS = {"Qwen/Qwen2.5-0.5B": 0.5, "meta-llama/Llama-3.2-1B": 1.0, "Qwen/Qwen2.5-7B": 7.0}
DATA = tuple(file_names(PARAMS, "data"))
WORKED = ("gsm8k", "math", "numina_math")  # have solutions to learn from
OWN_ANSWERS = 128  # tokens; the problems that a recipe generates are sums and stories of a few steps


@pytest.fixture(scope="module", autouse=True)
def values_found_once() -> Iterator[None]:
    """The same files are read, and the same overrides resolved, for many steps."""
    known: dict[tuple[int, tuple[str, ...]], Params] = {}
    resolve = Layers.params

    def params(layers: Layers, overrides: Iterable[str] = ()) -> Params:
        key = (id(layers), tuple(overrides))
        if key not in known:
            known[key] = resolve(layers, key[1])
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mathrl.recipes.recipe.read_layers", cached_layers)
        patch.setattr(Layers, "params", params)
        yield


cached_layers = cache(read_layers)


@pytest.mark.parametrize(("data", "model"), zip(DATA, cycle(MODELS)))
def test_each_step_gets_what_suits_model_and_data_or_the_recipe_is_refused_with_the_reason(
    data: str, model: str
) -> None:
    method = "sft-grpo" if data in WORKED else "grpo"
    words = (f"data={data}", f"model={model}", f"method={method}", "hardware=8x80GB")
    layers = cached_layers(PARAMS, None, None, Composition(dict(word.split("=") for word in words)))  # type: ignore[misc]
    taken, found = 0, []
    for name in recipe_names(PARAMS):
        try:
            recipe = load_recipe(name, PARAMS, words)
        except UserError as error:
            assert is_a_reason(str(error), name), error
            continue
        taken += 1
        for step, kind in recipe.steps.items():
            params = step_params(recipe, step, layers)
            least = OWN_ANSWERS if own(recipe, kind) else ANSWERS[data][0]
            lines = [
                *judge(params, [kind.stage], recipe.overrides)[0],
                *wrong_rates(params, kind.stage, MODELS[model]),
                *short_lengths(params, kind.stage, least),
                *wrong_starts(recipe, step, params, model, layers),
            ]
            found += [f"{name}, {step}: {line}" for line in lines]
    assert found == []
    assert taken >= len(recipe_names(PARAMS)) - (1 if data in (*WORKED, "chain") else 3), (
        "distillation, and SFT on nothing"
    )


def is_a_reason(text: str, recipe: str) -> bool:
    """Lines that name the step and what is wrong with it, and say what to write."""
    lines = text.split(f"{recipe_files(PARAMS)[recipe]}: ")[1:]
    advice = ("set ", "write ", "name ", "expected ", "choose ")
    return bool(lines) and all(line.startswith("steps.") and any(word in line for word in advice) for line in lines)


def own(recipe: Recipe, step: object) -> bool:
    """Whether the step reads problems of the recipe's own."""
    curated = getattr(step, "curated", None) or recipe.curated
    return curated in recipe.steps and recipe.steps[curated].set != ()


def wrong_rates(params: Params, stage: str, size: float) -> Iterator[str]:
    """Rates that are not within 30 times the usual, either way."""
    section = TRAINED.get(stage)
    if section is None or (stage == "sft" and not params.sft.steps):
        return
    trained = {section: getattr(params, section)} | (
        {"rl.advantage.critic": params.rl.critic} if section == "rl" and params.rl.critic else {}
    )
    for path, values in trained.items():
        usual, _ = usual_rate(path, values.lora is not None, size, None)
        if not usual / TIMES < values.optimizer.adamw_lr < usual * TIMES:
            yield f"{path} {values.optimizer.adamw_lr}"


def short_lengths(params: Params, stage: str, least: int) -> Iterator[str]:
    if stage in SAMPLING and getattr(params, stage).max_tokens < least:
        yield f"{stage}.max_tokens {getattr(params, stage).max_tokens}"
    if stage in SAMPLING and params.prompt.max_tokens < 256:
        yield f"prompt.max_tokens {params.prompt.max_tokens}"


def wrong_starts(recipe: Recipe, name: str, params: Params, model: str, layers: Layers) -> Iterator[str]:
    """What the step cannot start from: another model, data that no source has, a benchmark that is none."""
    step = recipe.steps[name]
    if "model" in READS[step.stage]:
        base = params.model.base
        if not isinstance(base, PretrainedModel) or base.path != model:
            yield f"{base} instead of {model}"
    for field, other, kinds in references(step):
        if "a model" in kinds and recipe.steps[other].stage not in (*POLICIES, "reward_model", "process_reward_model"):
            yield f"{field} {other} is no model"
    if step.stage == "evaluate":
        yield from (f"no benchmark {each}" for each in params.evaluate.benchmarks if each != "test" and not find(each))
    curate = curate_of(recipe, name, layers)
    if curate is None:
        return
    bare = [
        source.name for source in curate.sources if getattr(getattr(source, "options", None), "notation", "") == "bare"
    ]
    if bare:
        yield f"{bare} in a notation that only a model of random weights learns"
    sources = {source.name for source in curate.sources}
    if step.stage == "mix":
        yield from (f"no source {part.source}" for part in params.mix.components if part.source not in ("*", *sources))
    split = [each for each in getattr(step, "data", ()) if each == "sft" and not is_path(each)]
    if step.stage == "sft" and params.sft.steps and split and not curate.fills("sft"):
        yield "no demonstrations"
