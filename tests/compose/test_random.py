"""Compositions by chance: each is taken with rates and lengths that suit it, or refused with the reason."""

import random
from pathlib import Path

from mathrl.compose.experiment import split_choices
from mathrl.compose.load import read_layers
from mathrl.core.errors import UserError
from mathrl.params.run import PretrainedModel
from mathrl.params.schema import STAGES, Params
from mathrl.planning.final_values import TIMES, judge, usual_rate
from mathrl.recipes.recipe import load_recipe, recipe_names, step_params

PARAMS = Path(__file__).parents[2] / "params"
# Tokens that the longer solutions of each set take, of a pretrained model and of the toy's characters.
ANSWERS = {"chain": (128, 61), "gsm8k": (400, 1000), "math": (900, 1000), "dapo": (1024, 512), "countdown": (256, 128),
           "numina_math": (1024, 512), "orz": (1024, 512)}  # fmt: skip
MODELS = ("toy", "qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B-Instruct", "meta-llama/Llama-3.2-1B",
          "Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-32B", "somebody/model-3b")  # fmt: skip
METHODS = ("grpo", "sft-grpo", "dapo", "dr-grpo", "gspo", "rloo", "ppo")
HARDWARE = ("laptop", "1x8GB", "1x24GB", "1x80GB", "8x24GB", "8x80GB", "2x8x80GB")
LORA = ("rl.lora={}", "sft.lora={}")
NUMBER = 60


def composition(rng: random.Random) -> tuple[list[str], list[str], str | None]:
    """The names of the data, the words of a composition, and a recipe."""
    names = rng.sample(sorted(ANSWERS), rng.choice([1, 1, 1, 2]))
    data = "+".join(f"{name}:{rng.choice([1, 2, 0.5])}" if len(names) > 1 else name for name in names)
    words = [f"data={data}", f"model={rng.choice(MODELS)}", f"method={rng.choice(METHODS)}"]
    words.append(f"hardware={rng.choice(HARDWARE)}")
    words += rng.sample(LORA, 2) if rng.random() < 0.2 else []
    return names, words, rng.choice([None, None, *recipe_names(PARAMS)])


def suits(params: Params, stage: str, names: list[str]) -> None:
    """The values that a stage of this composition would run with."""
    base = params.model.base
    pretrained = isinstance(base, PretrainedModel)
    trained = {"sft": params.sft, "rl": params.rl}.get(stage)
    if isinstance(base, PretrainedModel) and trained is not None and (stage == "rl" or params.sft.steps):
        usual, _ = usual_rate(stage, trained.lora is not None, None, None)
        assert trained.optimizer.adamw_lr < usual * TIMES
    if stage in ("difficulty", "rl", "evaluate"):
        least = max(ANSWERS[name][0 if pretrained else 1] for name in names)
        assert getattr(params, stage).max_tokens >= least


def test_a_composition_by_chance_suits_or_is_refused_with_the_reason() -> None:
    taken = refused = 0
    for number in range(NUMBER):
        rng = random.Random(number)
        names, words, recipe = composition(rng)
        chosen, settings = split_choices(words)
        try:
            layers = read_layers(PARAMS, None, None, chosen)
            params = layers.params(settings)
            layers.derive(settings, ("sft", "rl") if params.sft.steps else ("rl",))
            refusals, _ = judge(params, STAGES)
            if refusals:
                raise UserError("; ".join(refusals))
            steps = load_recipe(recipe, PARAMS, tuple(words)) if recipe else None
        except UserError as error:
            said = str(error)
            assert "\n" not in said and len(said) > 40, (words, said)
            refused += 1
            continue
        taken += 1
        for stage in STAGES:
            suits(params, stage, names)
        if steps is not None:
            for step, kind in steps.steps.items():
                own = step_params(steps, step, layers)
                if isinstance(own.model.base, PretrainedModel):
                    assert judge(own, [kind.stage], settings)[0] == [], (words, recipe, step)
    assert taken > 20 and refused > 5
