"""dvc.yaml and recipes as DVC graphs say what the code says, and a tiny run of one through `dvc repro`."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.artifacts import ProgressArtifact
from ruamel.yaml import YAML

from mathrl.core.files import write_text
from mathrl.params.load import parse_yaml
from mathrl.params.recipe_steps import DEFAULT, PIPELINE_OUTPUTS
from mathrl.params.schema import READS, STAGES
from mathrl.recipes.graph import graph, graph_files
from mathrl.recipes.recipe import load_recipe, recipe_files, recipe_names
from mathrl.tasks.report import artifact_key

Checkout = Any
ROOT = Path(__file__).parents[2]
NAMES = [name for name in recipe_names(ROOT / "params") if name != DEFAULT]
# A model of a few thousand weights that has learned to write an answer, and two steps of everything else.
TINY = (
    "run.processes=1", "run.device=cpu", "model.base.hidden_size=16", "model.base.intermediate_size=16",
    "model.base.layers=1", "model.base.heads=2", "model.base.alphabet=arithmetic",
    "model.precision=float32", "reward.extraction=lenient", "sft.steps=60", "sft.terse_share=1.0",
    "sft.tokens_per_step=128", "sft.optimizer.lr=0.1", "sft.optimizer.adamw_scale=0.1", "rl.steps=2",
    "rl.prompts_per_step=4", "rl.group_size=4", "rl.max_tokens=6", "rl.dev.every=0", "rl.dev.samples=1",
    "sample.samples=8", "sample.max_tokens=6", "dpo.steps=2", "dpo.pairs_per_step=4",
    "reward_model.steps=2", "reward_model.batch=4", "reward_model.replay=1.0", "evaluate.samples=2",
    "evaluate.ks=[1, 2]", "evaluate.max_tokens=6",
)  # fmt: skip
CURATE = """sources:
  - {type: generated, name: chain, generator: chain, counts: {sft: 16, rl: 32, dev: 4, test: 4},
     options: {steps: [2], largest_number: 3, largest_result: 4, notation: bare}}
decontaminate: null
deduplicate: {exact: false}
"""


GIVEN = ("data/curated/", "data/inputs/", *PIPELINE_OUTPUTS)


def stages_of(name: str) -> dict[str, Any]:
    files = graph_files(name, load_recipe(name, ROOT / "params"), ROOT)
    assert {file.name for file in files} == {"dvc.yaml", ".gitignore"}
    stages: dict[str, Any] = parse_yaml(files[ROOT / "pipelines" / "recipes" / name / "dvc.yaml"], name)["stages"]
    return stages


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_needs_only_curated_data_and_what_stands_before_it(name: str) -> None:
    before: set[str] = set()
    for stage in stages_of(name).values():
        for dep in stage["deps"]:
            assert dep.startswith(GIVEN) or "/".join(dep.split("/")[:4]) in before, f"{dep} is made later, or never"
        words = stage["cmd"].split()
        assert words[:2] == ["python", "-m"] and words[2].startswith("mathrl.stages.")
        module = words[2].rpartition(".")[2]
        sections, code = stage["params"]
        assert sections == {"resolved.yaml": list(READS[module])} and code["code.yaml"][0] == module
        before |= {words[3]}


def test_seeds_are_stages_of_their_own_and_start_from_their_own() -> None:
    stages = graph("study", load_recipe("study", ROOT / "params"), ROOT)
    assert "--start pipelines/recipes/study/sft-s1/model" in stages["grpo-s1"]["cmd"]
    assert stages["grpo-s1"]["cmd"].endswith("--set run.seed=1")
    assert "chains" in stages and "chains-s0" not in stages  # curated once
    assert stages["short_sft-s2"]["deps"][1] == "pipelines/recipes/study/chains/splits/sft.jsonl"
    assert "methods=pipelines/recipes/study/methods-s2" in stages["summary"]["cmd"]


def test_only_a_base_with_a_trained_tokenizer_reads_the_sft_split_of_its_curate_step() -> None:
    deps = {
        name: graph(name, load_recipe(name, ROOT / "params"), ROOT)["base"]["deps"]
        for name in ("sft-rl", "word-problems")
    }
    assert deps["word-problems"][0] == "pipelines/recipes/word-problems/stories/splits/sft.jsonl"
    assert deps["sft-rl"] == deps["word-problems"][1:] == []
    overridden = load_recipe("word-problems", ROOT / "params", ("model.base.tokenizer=null",))
    assert graph("word-problems", overridden, ROOT)["base"]["deps"] == deps["word-problems"][1:]


def test_a_value_with_a_dollar_and_a_brace_reaches_its_step(tmp_path: Path) -> None:
    from dvc.repo import Repo  # seconds

    shutil.copytree(ROOT / "params", tmp_path / "params")
    (tmp_path / "params" / "recipes").mkdir()
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    asked = "prompt.instruction='Write ${x}$, not $y; it''s \\boxed{}.'"
    (tmp_path / "params" / "recipes" / "mine.yaml").write_text(
        f"description: mine\nset: [{json.dumps(asked)}]\nsteps:\n  sft: {{stage: sft, start: base}}\n"
    )
    for file, text in graph_files("mine", load_recipe("mine", tmp_path / "params"), tmp_path).items():
        write_text(file, text)
    with Repo.init(str(tmp_path), no_scm=True) as repo:
        stage = repo.stage.load_one(str(tmp_path / "pipelines" / "recipes" / "mine" / "dvc.yaml"), "sft")
    assert shlex.split(stage.cmd)[-1] == asked


def write(checkout: Checkout, name: str, *overrides: str, more: str = "") -> None:
    """The recipe, with more steps, over tiny settings, with its graph."""
    folder = checkout.folder
    text = recipe_files(ROOT / "params")[name].read_text()
    (folder / "params" / "recipes").mkdir(exist_ok=True)
    every = json.dumps([*TINY, *overrides])
    (folder / "params" / "recipes" / f"{name}.yaml").write_text(f"{text}{more}overrides: {every}\n")
    checkout.python(
        f"from pathlib import Path; from mathrl.recipes.graph import write_recipe_graph as b; b({name!r}, Path())"
    )


def run(checkout: Checkout, name: str, *steps: str) -> list[str]:
    """The stages that `dvc repro` ran, or with --dry would run, without the one that resolves the parameters."""
    file = f"pipelines/recipes/{name}/dvc.yaml"
    wanted = [step if step.startswith("--") else f"{file}:{step}" for step in steps]
    done = checkout.repro(*(wanted or [file]), MATHRL_MIRROR="none")
    ran = re.findall(r"^Running stage '(?:.*:)?(\w+)'", done.stdout, re.MULTILINE)
    return [step for step in ran if step not in ("code", "resolve")]


@pytest.fixture(scope="module")
def tiny(real_checkout: Checkout, warm_python: Path) -> Checkout:
    (real_checkout.folder / "params" / "curate.yaml").write_text(CURATE)
    real_checkout.use_python(warm_python)
    return real_checkout


DPO = "  dpo: {stage: dpo, start: sft, data: [samples_1]}\n"


def test_iterative_grpo_and_dpo_and_a_setting_that_one_step_depends_on(tiny: Checkout) -> None:
    write(tiny, "iterative-grpo", more=DPO)
    ran = [step for step in run(tiny, "iterative-grpo", "judge_2", "dpo") if step not in ("curate", "base")]
    assert sorted(ran) == ["dpo", "judge_1", "judge_2", "round_1", "samples_1", "samples_2", "sft"]
    made = tiny.folder / "pipelines" / "recipes" / "iterative-grpo"
    card = (made / "judge_2" / "model" / "README.md").read_text()
    assert "judge_1" in card and " 0 of them repeated" not in card
    write(tiny, "iterative-grpo", "dpo.beta=0.3", more=DPO)
    assert run(tiny, "iterative-grpo", "--dry", "judge_2", "dpo") == ["dpo"]


def test_prefect_takes_every_key_of_an_artifact() -> None:
    for name in ("qwen2.5-0.5b", "recipe-A b_"):
        assert ProgressArtifact(progress=1.0, key=artifact_key(name)).key == artifact_key(name)


StageFiles = Callable[[str], tuple[list[str], list[str]]]


def stages() -> dict[str, Any]:
    """The stages of dvc.yaml but those that write the code's values and the parameters."""
    found: dict[str, Any] = dict(YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"])
    del found["code"], found["resolve"]
    return found


def paths(entries: list[Any]) -> set[str]:
    return {next(iter(entry)) if isinstance(entry, dict) else entry for entry in entries}


STAGE_NAMES = list(stages())


def test_it_is_made_from_the_recipe_of_the_pipeline() -> None:
    ((file, text),) = graph_files(DEFAULT, load_recipe(DEFAULT, ROOT / "params"), ROOT).items()
    assert file == ROOT / "dvc.yaml" and file.read_text() == text, "run: make generate"


def test_only_the_stage_that_resolves_them_depends_on_params() -> None:
    assert tuple(STAGE_NAMES) == STAGES
    resolve = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]["resolve"]
    assert resolve == {
        "cmd": "python -m mathrl.stages.resolve",
        "deps": ["params"],
        "params": [{"code.yaml": ["resolve", "model"]}],
        "outs": ["resolved.yaml"],
    }


@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_a_stage_watches_its_inputs_outputs_sections_and_code_alone(stage: str, stage_files: StageFiles) -> None:
    sections, code = stages()[stage]["params"]
    assert sections == {"resolved.yaml": list(READS[stage])}
    own = ["own"] if {"reward", "rl"} & set(READS[stage]) else []  # the project's own functions
    assert code == {"code.yaml": [stage, *own]}

    inputs, outputs = stage_files(stage)
    deps = paths(stages()[stage]["deps"])
    for path in inputs:
        assert any(path == dep or path.startswith(dep + "/") for dep in deps), path
    for dep in deps:
        assert any(path == dep or path.startswith(dep + "/") for path in inputs), f"{dep} is no input"
    declared = paths(stages()[stage].get("outs", [])) | paths(stages()[stage].get("metrics", []))
    assert declared == set(outputs)
