"""The flows ask about the lengths of all their stages before the first one that samples or trains."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mathrl.compose import load_params, write_params
from mathrl.models.base import make_base
from mathrl.params.run import FreshModel, Model
from tests.platform.conftest import Checkout

SOURCE = "prompt_key: ask, answer_key: gold, solution_key: working"


def write_rows(file: Path, solution: int) -> None:
    """Rows whose solutions take so many tokens."""
    file.parent.mkdir(parents=True, exist_ok=True)
    worked = {n: f"{n:04}" * (solution // 4) for n in range(60)}
    rows = [{"ask": f"What is {n} + 1?", "gold": str(n + 1), "working": worked[n]} for n in worked]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def project(real_checkout: Checkout, tmp_path_factory: pytest.TempPathFactory, warm_python: Path) -> Checkout:
    """A project with an own model, whose responses may have 256 tokens and whose evaluation 160."""
    folder = tmp_path_factory.mktemp("own")
    base = FreshModel(hidden_size=32, intermediate_size=16, layers=1, heads=2)
    make_base(Model(base=base, precision="float32"), folder / "start", 0)
    write_rows(folder / "rows.jsonl", 100)
    write_rows(folder / "far" / "train.jsonl", 200)
    (folder / "named").mkdir()
    graded = [{"question": f"What is {n} - 1?", "answer": f"{n:04}" * 50 + f"\n#### {n - 1}"} for n in range(60)]
    (folder / "named" / "gsm8k_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in graded))
    written = [
        f"model.base={{type: pretrained, path: {folder / 'start'}}}",
        f"curate.sources=[{{type: file, name: own, path: {folder / 'rows.jsonl'}, split: rl, {SOURCE}}}]",
        *(
            "curate.test_share=0.3",
            "curate.dev_share=0.1",
            "curate.decontaminate=null",
            "sft.steps=0",
            "rl.optimizer.lr=1e-6",
        ),
        *("rl.optimizer.type=adamw", "prompt.max_tokens=128", "difficulty.max_tokens=256", "rl.max_tokens=256"),
        *("evaluate.max_tokens=160", f"evaluate.data_folder={folder / 'named'}"),
    ]
    real_checkout.use_python(warm_python)
    params = real_checkout.folder / "params"
    write_params(load_params(params), load_params(params, overrides=written), params)
    real_checkout.git("add", "params")
    real_checkout.git("commit", "-qam", "own")
    return real_checkout


def refusal(project: Checkout, words: Sequence[str]) -> str:
    done = project.mathrl(*words, ok=False)
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return line


def test_a_named_benchmark_that_would_be_cut_off_is_refused_before_any_stage(project: Checkout) -> None:
    assert refusal(project, ["run", "pipeline", "--set", "evaluate.benchmarks=[test, gsm8k]"]) == (
        "error: evaluate.max_tokens is 160, and 100.0% of 60 solutions of gsm8k are longer (95th percentile: 200 "
        "tokens): set evaluate.max_tokens=224; to run with it all the same, type it for this run: --set "
        "evaluate.max_tokens=160"
    )
    (run,) = (project.folder / "runs").iterdir()
    assert not (run / "data" / "curated").exists()


def test_a_benchmark_that_cannot_be_read_is_refused_before_any_stage(project: Checkout, tmp_path: Path) -> None:
    (tmp_path / "gsm8k_test.jsonl").write_text(json.dumps({"question": "What is 2 - 1?", "answer": "1"}) + "\n")
    words = ["run", "pipeline", "--dry-run", "--set", "evaluate.benchmarks=[gsm8k]"]
    said = refusal(project, [*words, "--set", f"evaluate.data_folder={tmp_path}"])
    assert (
        said.startswith("error: evaluate.benchmarks: gsm8k: ") and "line 1: field 'answer': no text after ####" in said
    )


def test_of_what_is_read_from_the_hub_the_flow_asks_when_it_is_curated(project: Checkout) -> None:
    far = project.folder.parent / "far"
    own = json.loads(load_params(project.folder / "params").model_dump_json())["curate"]["sources"][0]["path"]
    settings = [
        "--set",
        f"curate.sources=[{{type: hub, name: far, id: {Path(own).parent / 'far'}, split: rl, {SOURCE}}}]",
    ]
    assert not far.exists()
    said = refusal(project, ["run", "pipeline", *settings])
    assert said.startswith("error: evaluate.max_tokens is 160, and 100.0% of ") and "solutions of the data" in said
    (run,) = (folder for folder in (project.folder / "runs").iterdir() if "sources" in folder.name)
    assert (run / "data" / "curated" / "test.jsonl").exists() and not (run / "models").joinpath("sft").exists()


def test_a_step_of_a_recipe_is_refused_before_the_first_one_runs(project: Checkout) -> None:
    recipe = {
        "description": "RL, and an evaluation",
        "steps": {
            "rl": {"stage": "rl", "start": "base", "set": ["rl.steps=1", "rl.min_pass_at_8=0"]},
            "grade_school": {"stage": "evaluate", "models": ["base", "rl"], "set": ["evaluate.benchmarks=[gsm8k]"]},
        },
    }
    (project.folder / "params" / "recipes").mkdir()
    (project.folder / "params" / "recipes" / "graded.yaml").write_text(json.dumps(recipe))
    project.git("add", ".")
    project.git("commit", "-qm", "a recipe")
    for words in (["--dry-run"], []):
        said = refusal(project, ["recipe", "graded", *words])
        assert said.startswith(
            "error: steps.grade_school: evaluate.max_tokens is 160, and 100.0% of 60 solutions of gsm8k"
        )
    assert not (project.folder / "data" / "curated").exists()
