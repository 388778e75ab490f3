"""Controls of an RL run as a recipe: the same run with rewards that say nothing about being right, and other ways to
spend its computation, over several seeds; the recipe's claim compares all of them with its start and its model.

| control | what it is |
|---|---|
| random | reward at random, as often as the run's responses were right (arXiv:2506.10947) |
| form | the parts of the reward that do not know the truth; without any, the tags of R1-Zero |
| majority | the answer that most responses of the group give is taken as right (TTRL, arXiv:2504.16084) |
| inverted | wrong responses are rewarded, right ones are not |
| more_sft | the start fine-tuned further, for as much computation as the RL took |
| worked | the start's own fine-tuning again, on worked demonstrations alone |
| thinking | the start, made to begin its responses with `controls.forced_prefix` |
| best_of_k | the start's majority vote over its k samples: in every claim's table, without a run of its own |

One seed of a pipeline is controlled on its own models, which are not trained again; several seeds train theirs.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mathrl.compose import load_params
from mathrl.compose.changes import differences
from mathrl.core.errors import UserError
from mathrl.core.files import read_json, read_jsonl
from mathrl.core.paths import RECIPES, WORKTREE_NOTE
from mathrl.core.records import METRICS
from mathrl.core.statistics import sum_in_order
from mathrl.params.advantage import Distillation, Process
from mathrl.params.recipe_steps import (
    DEFAULT,
    Claim,
    CurateStep,
    EvaluateStep,
    Recipe,
    RlStep,
    SftStep,
    references,
    short,
)
from mathrl.params.run import Reward
from mathrl.params.schema import Params
from mathrl.params.train import Rl, Sft
from mathrl.recipes.recipe import load_recipe, step_overrides, write_recipe

CONTROLS = ("random", "form", "majority", "inverted", "more_sft", "worked", "thinking")
OWN_MODELS = "controls-pipeline"  # the recipe on the models of the pipeline that is in its folder
FORM_PARTS = ("format_lines", "r1_tags", "language", "overlong", "repetition")  # know no truth
HEADER = "# Made by `mathrl runs controls {run}`, which writes it anew: to change it, copy it under another name.\n"
Rows = Sequence[Mapping[str, Any]]
# The steps behind the pipeline's own models, as the controls take them up.
OWN = {
    "models/sft": SftStep(stage="sft", start="models/base"),
    "models/rl": RlStep(
        stage="rl", start="models/sft", data=("data/mixture/train.jsonl",), difficulty="data/difficulty"
    ),
}


@dataclass(frozen=True)
class ControlledRun:
    """The run `step` of a recipe, the rows of its metrics, and its parameters.

    On a pipeline's own models the recipe has no step yet, and `step` is models/rl.
    """

    name: str
    recipe: Recipe
    step: str
    rows: Rows
    params: Params

    @property
    def rl(self) -> RlStep:
        step = OWN[self.step] if self.step in OWN else self.recipe.steps[self.step]
        assert isinstance(step, RlStep)
        return step

    @property
    def start(self) -> SftStep | None:
        """The fine-tuning that made the start; None if RL began with the base, or after another step."""
        step = OWN.get(self.rl.start) or self.recipe.steps.get(self.rl.start)
        return step if isinstance(step, SftStep) else None

    @property
    def rate(self) -> float:
        """Share of right responses over the run, to four decimals."""
        return round(sum_in_order(row["reward/accuracy"] for row in self.rows) / len(self.rows), 4)


def write_control_recipe(
    run: str, seeds: int, only: Iterable[str] = (), overrides: Iterable[str] = (), checkout: Path = Path()
) -> tuple[str, Path]:
    """Write the recipe of the run's controls into params/recipes; returns its name and the folder that it runs in.

    `run` is rl (the pipeline's), NAME of a folder under runs/, or a recipe's step: RECIPE/STEP, run in the checkout, or
    NAME/STEP, run under runs/ because it had overrides. `overrides` go over the run's parameters in every step.
    One seed of a pipeline without overrides is run in the run's own folder, on its models; all else in the checkout.

    Raises:
        UserError: no such run, one without metrics, or one whose rewards have no counterpart without truth.
    """
    overrides, run = tuple(overrides), "rl" if run == f"{DEFAULT}/rl" else run
    name, folder = f"controls-{run.replace('/', '-')}", checkout
    if seeds == 1 and "/" not in run and not overrides:
        controlled = _with_own_models(run, checkout)
        name, folder = OWN_MODELS, _folder_of(run, checkout)
    else:
        controlled = find_controlled(run, overrides, checkout)
    recipe = control_recipe(controlled, seeds, tuple(only))
    write_recipe(recipe, folder / "params" / "recipes" / f"{name}.yaml", HEADER.format(run=run))
    return name, folder


def find_controlled(run: str, overrides: tuple[str, ...] = (), checkout: Path = Path()) -> ControlledRun:
    """The run that `run` names, as the step of a recipe.

    Raises:
        UserError: see `write_control_recipe`.
    """
    name, _, step = run.partition("/")
    if step:
        folder, recipe_name = _recipe_run(checkout, name)
        recipe = load_recipe(recipe_name, folder / "params")
        if not isinstance(recipe.steps.get(step), RlStep):
            names = [name for name, candidate in recipe.steps.items() if isinstance(candidate, RlStep)]
            raise UserError(f"{run}: no RL step of recipe {recipe_name}; RL steps: {', '.join(names) or 'none'}")
        recipe = _with_params(_ancestors(recipe, step), folder, checkout)
        labels = [step, *(f"{step}-s{seed}" for seed in recipe.seeds)]
        files = [folder / RECIPES / recipe_name / label / "report" / METRICS for label in labels]
    else:
        folder = _folder_of(run, checkout)
        recipe, step = _pipeline(checkout, folder), "rl"
        files = [folder / "reports" / "rl" / METRICS]
    rows = _metrics(run, files)
    recipe = recipe.model_copy(update={"overrides": (*recipe.overrides, *overrides)})
    params = load_params(checkout / "params", overrides=step_overrides(recipe, step))
    return ControlledRun(run, recipe, step, rows, params)


def _folder_of(run: str, checkout: Path) -> Path:
    """The folder of a pipeline's run.

    Raises:
        UserError: there is none.
    """
    folder = checkout if run == "rl" else checkout / "runs" / run
    if not (folder / "params").is_dir():
        raise UserError(
            f"{run}: no such run; give rl (the pipeline's), NAME of a folder under runs/, or a recipe's "
            "RECIPE/STEP or NAME/STEP"
        )
    return folder


def _metrics(run: str, files: Sequence[Path]) -> Rows:
    rows = [row for file in files if file.is_file() for row in read_jsonl(file) if "reward/accuracy" in row]
    if not rows:
        raise UserError(f"{run}: {files[0]} has no metrics of RL; run it first, its controls take their rate from them")
    return rows


def _with_own_models(run: str, checkout: Path) -> ControlledRun:
    """The pipeline's RL as it is in its folder, whose steps are not run again."""
    folder = _folder_of(run, checkout)
    rows = _metrics(run, [folder / "reports" / "rl" / METRICS])
    recipe = Recipe.model_construct(description="the pipeline", steps={})
    return ControlledRun(run, recipe, "models/rl", rows, load_params(folder / "params"))


def control_recipe(run: ControlledRun, seeds: int, only: Sequence[str] = ()) -> Recipe:
    """The recipe: the run's own steps unless it is on its own models, a step per control, evaluations, and the claim.

    Raises:
        UserError: an unknown control, or one that this run cannot have.
    """
    reward, rl = run.params.reward, run.rl
    if unknown := [name for name in only if name not in CONTROLS]:
        raise UserError(f"no control {', '.join(unknown)}; controls: {', '.join(CONTROLS)}")
    if isinstance(run.params.rl.advantage, Process | Distillation) or reward.judge.continuations:
        raise UserError(
            f"{run.name}: its rewards are of reasoning steps or of a teacher's tokens, which have no counterpart "
            "without truth; controls are for runs whose rewards are of responses"
        )
    if clash := sorted({*CONTROLS, "controls"} & set(run.recipe.steps)):
        raise UserError(f"{run.name}: steps named {', '.join(clash)} have the name of a control; rename them")
    plain = rl.model_copy(update={"reward_model": None})
    rewards = control_rewards(reward, run.rate)
    steps: dict[str, Any] = {
        name: plain.model_copy(update={"set": (*rl.set, *rewards[name])})
        for name in rewards
        if name in (only or rewards)
    }
    if "more_sft" in only or (not only and _has_demonstrations(run)):
        steps["more_sft"] = _more_sft(run)
    if "worked" in (only or CONTROLS) and (worked := _sft_with_working(run)):
        steps["worked"] = worked
    own = run.step in OWN
    first = run.params.run.seed
    evaluations = ["reports/evaluate"] if own else []
    if models := tuple(steps) if own else (rl.start, *steps, run.step):
        steps["controls"] = EvaluateStep(stage="evaluate", curated=rl.curated, models=models)
        evaluations.append("controls")
    if "thinking" in (only or CONTROLS) and (prefix := _prefix(run.params)):
        settings = (f"prompt.response_prefix={json.dumps(prefix, ensure_ascii=False)}",)
        steps["thinking"] = EvaluateStep(stage="evaluate", curated=rl.curated, models=(rl.start,), set=settings)
        evaluations.append("thinking")
    return run.recipe.model_copy(
        update={
            "description": f"Controls of {run.name}: what its gain owes to the reward",
            "seeds": () if own else tuple(range(first, first + seeds)),
            "claim": Claim(
                start=short(rl.start),
                model=short(run.step),
                evaluations=tuple(evaluations),
                apart=("base",) if own and short(rl.start) != "base" else (),
            ),
            "steps": {**run.recipe.steps, **steps},
        }
    )


def control_rewards(reward: Reward, rate: float) -> dict[str, tuple[str, ...]]:
    """The overrides of each control's reward.

    Example, rate 0.6: random: ('reward.parts=[{"type": "noisy_accuracy", "options": {"false_positives": 0.6,
    "false_negatives": 0.4}}]', 'reward.routes={}')
    """
    wrong = {
        "random": {"false_positives": rate, "false_negatives": round(1 - rate, 4)},
        "inverted": {"false_positives": 1.0, "false_negatives": 1.0},
    }
    parts: dict[str, list[dict[str, Any]]] = {
        name: [{"type": "noisy_accuracy", "options": options}] for name, options in wrong.items()
    }
    form = [part.model_dump(mode="json", exclude_defaults=True) for part in reward.parts if part.type in FORM_PARTS]
    voted = sum(part.weight for part in reward.parts if part.type not in FORM_PARTS)
    parts["form"] = form or [{"type": "r1_tags"}]
    parts["majority"] = [{"type": "majority", "weight": voted or 1.0}, *form]
    return {
        name: (f"reward.parts={json.dumps(parts[name], ensure_ascii=False)}", "reward.routes={}")
        for name in ("random", "form", "majority", "inverted")
    }


def equal_steps(rows: Rows, rl: Rl, sft: Sft) -> int:
    """SFT steps that cost what the logged RL steps did: trained tokens plus a third of the sampled ones.

    (A forward pass is a third of forward and backward: 2 and 6 floating-point operations per parameter and
    token.)
    """
    responses = rl.prompts_per_step * rl.group_size
    tokens = sum_in_order(row["trained_tokens"] + row["response_length"] * responses / 3 for row in rows)
    return max(1, math.ceil(tokens / sft.tokens_per_step))


def _fine_tuning(run: ControlledRun) -> SftStep:
    """The start's own fine-tuning, if that is a step."""
    return run.start or SftStep(stage="sft", curated=run.rl.curated)


def _has_demonstrations(run: ControlledRun) -> bool:
    """Whether the start can be fine-tuned further: a run straight from an instruct model has an empty split sft."""
    before = _fine_tuning(run)
    return "sft" not in before.data or run.params.curate.fills("sft") or _sft(run, before).steps > 0


def _more_sft(run: ControlledRun) -> SftStep:
    """The start trained further, on the data and with the settings of its own fine-tuning if that is a step."""
    before = _fine_tuning(run)
    sft = _sft(run, before)
    seeds = max(1, round(len(run.rows) / run.params.rl.steps))  # the rows may be those of several seeds
    steps = math.ceil(equal_steps(run.rows, run.params.rl, sft) / seeds)
    return before.model_copy(update={"start": run.rl.start, "set": (*before.set, f"sft.steps={steps}")})


def _sft_with_working(run: ControlledRun) -> SftStep | None:
    """The start's own fine-tuning without demonstrations that give the answer at once; None where it had none."""
    if run.start is None or "sft" not in run.start.data:
        return None
    sft = _sft(run, run.start)
    if not (sft.steps and sft.terse_share):
        return None
    return run.start.model_copy(update={"set": (*run.start.set, "sft.terse_share=0")})


def _sft(run: ControlledRun, step: SftStep) -> Sft:
    values = run.params.model_dump(mode="json", by_alias=True)
    settings = [item for item in (*run.recipe.set, *step.set, *run.recipe.overrides) if item.startswith("sft.")]
    return load_params(overrides=settings, instead=values).sft


def _prefix(params: Params) -> str | None:
    """What the start is made to begin with; None where its responses begin so already, or have no such form."""
    if params.prompt.response_prefix or params.prompt.template not in ("plain", "r1_zero"):
        return None
    return params.controls.forced_prefix


def _pipeline(checkout: Path, folder: Path) -> Recipe:
    """The pipeline up to RL as a recipe of the checkout, with the parameters of the run in `folder`."""
    recipe = _ancestors(load_recipe(DEFAULT, checkout / "params"), "rl")
    steps = {name: step for name, step in recipe.steps.items() if step.stage not in ("base", "curate")}
    return _with_params(recipe.model_copy(update={"steps": steps, "curated": None}), folder, checkout)


def _recipe_run(checkout: Path, name: str) -> tuple[Path, str]:
    """The folder in which a recipe was run, and the recipe: `name` is the recipe's, or that of a folder under runs/."""
    folder = checkout / "runs" / name
    return (folder, read_json(folder / WORKTREE_NOTE)["run"]) if folder.is_dir() else (checkout, name)


def _with_params(recipe: Recipe, folder: Path, checkout: Path) -> Recipe:
    """The recipe with what params/ of the run's folder changes in the checkout's, but for the seed; other splits are
    a step of their own."""
    before, after = (
        load_params(place / "params").model_dump(mode="json", by_alias=True) for place in (checkout, folder)
    )
    changed = {key: value for key, value in differences(before, after).items() if key != "run.seed"}
    settings = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in changed.items())
    update: dict[str, Any] = {"set": (*settings, *recipe.set)}
    if recipe.curated is None and any(key.startswith("curate.") for key in changed):
        update |= {"curated": "splits", "steps": {"splits": CurateStep(stage="curate"), **recipe.steps}}
    return recipe.model_copy(update=update)


def _ancestors(recipe: Recipe, step: str) -> Recipe:
    """The recipe with the step and those that it needs alone."""
    needed, left = {recipe.curated}, [step]
    while left:
        name = left.pop()
        if name not in needed:
            needed.add(name)
            left += [other for _, other, _ in references(recipe.steps[name])]
    steps = {name: kept_step for name, kept_step in recipe.steps.items() if name in needed}
    return recipe.model_copy(update={"steps": steps, "claim": None})
