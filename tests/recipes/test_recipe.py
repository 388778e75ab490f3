"""Recipes: what is refused, with which words, and in which order the steps come."""

import importlib
import json
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from mathrl.cli.recipe import print_recipes, recipe
from mathrl.core.errors import UserError
from mathrl.params.recipe_steps import references
from mathrl.recipes.graph import graph
from mathrl.recipes.recipe import load_recipe, recipe_names, step_overrides
from mathrl.stages import command

PARAMS = Path(__file__).parents[2] / "params"
SFT = "sft: {stage: sft, start: base}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PARAMS, tmp_path / "params"))


def write(folder: Path, *steps: str, more: str = "") -> None:
    lines = "".join(f"  {step}\n" for step in steps)
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "recipes" / "mine.yaml").write_text(f"description: mine\n{more}\nsteps:\n{lines}")


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_recipe("mine", folder)
    return str(caught.value)


@pytest.mark.parametrize("name", recipe_names(PARAMS))
def test_every_recipe_resolves_to_steps_that_come_after_what_they_need(name: str) -> None:
    recipe = load_recipe(name, PARAMS)
    before: set[str] = set()
    for step, each in recipe.steps.items():
        assert {other for _, other, _ in references(each)} <= before
        before.add(step)


@pytest.mark.parametrize("name", recipe_names(PARAMS))
def test_a_step_without_one_of_its_files_is_refused_by_its_option(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All commands of the recipe are whole; without a file that its stage always reads a command is not."""
    for stage in graph(name, load_recipe(name, PARAMS), PARAMS.parent).values():
        _, _, module, *words = shlex.split(stage["cmd"])
        if module == "mathrl.stages.resolve":
            continue
        work = importlib.import_module(module).work
        whole = command.parse(module, work, words, pipeline=True)
        for option in {"start", "dev", "rates"} & {each for each in vars(whole) if getattr(whole, each) is not None}:
            place = words.index(f"--{option}")
            with pytest.raises(SystemExit):
                command.parse(module, work, words[:place] + words[place + 2 :])
            assert f"it needs --{option}" in capsys.readouterr().err


def test_deepseek_r1_has_the_papers_stages() -> None:
    steps = load_recipe("deepseek-r1", PARAMS).steps
    assert [(name, step.stage, getattr(step, "start", None)) for name, step in steps.items()][1:-1] == [
        ("cold_start", "sft", "base"),
        ("rl_1", "rl", "cold_start"),
        ("samples", "sample", "rl_1"),
        ("sft_2", "sft", "base"),
        ("rl_2", "rl", "sft_2"),
    ]


def test_steps_are_put_in_order_and_a_base_is_added(folder: Path) -> None:
    write(folder, "rl: {stage: rl, start: sft}", SFT)
    assert list(load_recipe("mine", folder).steps) == ["base", "sft", "rl"]


def test_the_graph_of_a_recipe_with_overrides_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PARAMS.parent)
    for options in ({"overrides": ["rl.steps=3"]}, {"choices": ["data=gsm8k"]}, {"presets": ["gsm8k-ppo-24gb"]}):
        with pytest.raises(UserError, match="--graph writes the recipe as params/ has it"):
            recipe("sft-rl", only_graph=True, **options)


def test_a_path_may_have_an_equals_sign(folder: Path) -> None:
    model, data = "runs/lr=1e-5", "own/rows=10/train.jsonl"
    for path in (model, data):
        (folder.parent / path).mkdir(parents=True)
    rl = f"rl: {{stage: rl, start: {model}, data: [{data}]}}"
    write(folder, rl, f"test: {{stage: evaluate, models: [{model}/, rl]}}")
    stages = graph("mine", load_recipe("mine", folder), folder.parent)
    assert {model, data} < {*stages["rl"]["deps"]}
    assert f"{model}//model" not in stages["test"]["deps"] and f"{model}/" in stages["test"]["deps"]
    words = shlex.split(stages["test"]["cmd"])
    labelled = [pair.split("=", 1) for option, pair in pairwise(words) if option == "--model"]
    assert labelled == [["lr-1e-5", f"{model}/"], ["rl", "pipelines/recipes/mine/rl/model"]]


def test_the_later_override_wins_and_only_sections_that_the_stage_reads_are_handed_on(folder: Path) -> None:
    write(folder, "sft: {stage: sft, start: base, set: [sft.steps=2]}", more="set: [rl.steps=3, sft.steps=1]")
    recipe = load_recipe("mine", folder, ("sft.steps=4",))
    assert step_overrides(recipe, "sft") == ["sft.steps=1", "sft.steps=2", "sft.steps=4"]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("rl: {stage: rl, start: sfd}", "steps.rl.start: 'sfd' is not a step (did you mean sft?); expected"),
        ("rl: {stage: rl, start: sft, data: [test]}", "steps.rl.data: 'test' is held out and never trained on"),
        ("rl: {stage: rl, start: sft, data: [dev]}", "steps.rl.data: 'dev' is held out and never trained on"),
        ("dpo: {stage: dpo, start: sft, data: [sft]}", "steps.dpo.data: 'sft' does not produce samples"),
        ("rl: {stage: rl, start: sft, reward_model: sft}", "expected a reward model: no step produces one"),
        ("rl: {stage: rk, start: sft}", "no stage 'rk'"),
        ("rl: {start: sft}", "steps.rl.stage: missing; write one of base, curate"),
        ("rl: {stage: rl, start: sft, strat: 1}", "steps.rl.strat: unknown parameter (did you mean start?)"),
        ("rl: {stage: rl, start: sft, set: [rl.stepz=3]}", "did you mean"),
        ("rl: {stage: rl, start: sft, teacher: sft}", "a teacher and rl.advantage=distillation go together"),
        ("rl: {stage: rl, start: sft, teacher: 'http://localhost:8000/v1'}", "is a step or a model folder"),
        ("rl: {stage: rl, start: sft, set: [rl.loss=jsd]}", "loss jsd needs a teacher, and advantage grpo has none"),
        ("rl: {stage: rl, start: sft, reference: sft}", "no effect unless rl.kl.coef is above 0"),
        ("rl: {stage: rl, start: sft, set: [rl.advantage=process]}", "name a process_reward_model"),
        (
            "rl: {stage: rl, start: models/stf}",
            "'models/stf' is no file of the checkout, and nothing that the pipeline",
        ),
        (
            "d: {stage: difficulty, start: sft}\n  "
            "m: {stage: mix, difficulty: d, set: ['mix.components=[{source: chian, weight: 1}]']}",
            "steps.m: mix.components: no source 'chian' (did you mean chain?); write one of chain, or '*' for all",
        ),
        ("t: {stage: evaluate, models: [sft, models/sft]}", "steps.t.models: two are called sft"),
        ("t: {stage: evaluate, models: [sft], benchmarks: ['$(id)']}", "it becomes part of a command"),
        ("t: {stage: evaluate, models: [sft], benchmarks: [..]}", "it becomes part of a command"),
        (
            "r: {stage: register, model: sft, evaluation: t}\n  t: {stage: evaluate, models: [sft]}",
            "only the pipeline, r",
        ),
        ("a: {stage: rl, start: b}\n  b: {stage: rl, start: a}", "in a cycle: a -> b -> a"),
        ("a: {stage: rl, start: a}", "in a cycle: a -> a"),
    ],
)
def test_a_wrong_step_is_refused_with_what_to_write(folder: Path, step: str, said: str) -> None:
    write(folder, SFT, step)
    message = refusal(folder)
    assert said in message and "recipes/mine.yaml" in message


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("set: [rll.steps=5]", "override 'rll.steps=5': unknown section 'rll' (did you mean rl?)"),
        ("overrides: [learning_rate=1]", "override 'learning_rate=1': write section.key=value: rl.optimizer.lr=1"),
        ("overrides: sft.steps=5", "overrides: Input should be a valid tuple, found 'sft.steps=5'"),
        ("overrides: 5", "overrides: Input should be a valid tuple, found 5"),
        ("set: ['sft.steps={times: .inf}']", "sft.steps={times: .inf}: steps: Input should be a valid integer"),
    ],
)
def test_an_override_that_would_count_nowhere_is_refused(folder: Path, more: str, said: str) -> None:
    write(folder, SFT, more=more)
    assert said in refusal(folder)


def test_all_errors_of_a_file_are_reported_at_once(folder: Path) -> None:
    write(
        folder,
        SFT,
        "a: {stage: rl, start: nowhere}",
        "b: {stage: rl, start: sft, set: [rl.steps=0]}",
        "c: {stage: dpo, start: sft, data: [rl]}",
    )
    message = refusal(folder)
    assert all(place in message for place in ("steps.a.start", "steps.b:", "rl.steps", "steps.c.data"))


def test_seeds_are_not_set_twice(folder: Path) -> None:
    write(folder, SFT, more="seeds: [0, 1]\nset: [run.seed=3]")
    assert "the recipe has seeds; change those" in refusal(folder)


def test_the_list_has_every_recipe_and_says_why_one_does_not_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, SFT, "rl: {stage: rl, start: nothing}")
    monkeypatch.chdir(folder.parent)
    print_recipes(as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == recipe_names(folder)
    place = lines.index("mine                     mine")
    assert lines[place + 1].split() == ["base", "->", "sft", "->", "rl"]
    assert "not in this project: params/recipes/mine.yaml: steps.rl.start: 'nothing' is not a step" in lines[place + 2]
    print_recipes(as_json=True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["recipes"]}
    assert "is not a step" in rows["mine"]["misfit"] and not rows["sft-rl"]["misfit"]
