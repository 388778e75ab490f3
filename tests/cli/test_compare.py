"""`mathrl compare` as a person meets it, in a checkout of its own."""

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mathrl.cli.main import app
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.files import read_jsonl, write_jsonl
from mathrl.core.types import Problem, write_problems
from mathrl.evaluation import paired
from mathrl.evaluation.compare import look_levels
from mathrl.evaluation.responses import read_run
from mathrl.evaluation.summary import accuracies
from mathrl.models.base import make_base
from mathrl.params.run import FreshModel, Model
from mathrl.reports.find_responses import find_run, output_of

ROOT = Path(__file__).parents[2]
RUN = "from mathrl.cli import main; main()"


def rows(model: str, mean: float, seed: int, problems: int = 60, benchmark: str = "test") -> list[dict[str, Any]]:
    draw, hardness = random.Random(seed), random.Random(7)
    out = []
    for p in range(problems):
        ability = mean + hardness.uniform(-0.3, 0.3)
        for sample in range(8):
            correct = draw.random() < ability
            out.append({
                "model": model, "benchmark": benchmark, "problem_id": f"p{p:03}", "sample": sample,
                "question": f"{p}+0=", "answers": ["1"], "level": p % 2, "subject": None, "response": "…",
                "extracted": "1" if correct else "2", "correct": correct, "rule": "", "length": 10,
                "truncated": False,
            })  # fmt: skip
    return out


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, warm_python: Path) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    shutil.copytree(ROOT / "params", folder / "params")
    write_jsonl(folder / "reports/evaluate/responses.jsonl", [*rows("sft", 0.4, 1), *rows("rl", 0.7, 2)])
    for seed in range(3):
        for step, mean in (("sft", 0.45), ("rl", 0.5)):
            file = folder / f"pipelines/recipes/study/{step}_test-s{seed}/report/responses.jsonl"
            write_jsonl(file, rows(step, mean + 0.02 * seed, 10 * seed + len(step)))
    write_jsonl(folder / "few.jsonl", rows("few", 0.5, 3, problems=59))
    write_jsonl(folder / "gsm.jsonl", rows("sft", 0.5, 3, benchmark="gsm8k"))
    write_jsonl(folder / "none.jsonl", [])
    write_jsonl(folder / "other.jsonl", [{"response": "1"}])
    write_jsonl(folder / "twice.jsonl", [*rows("a", 0.5, 3), *rows("a", 0.5, 4)])
    write_jsonl(folder / "cut.jsonl", rows("a", 0.5, 3)[:-1])
    changed = [row | {"question": "else"} for row in rows("changed", 0.5, 3)]
    write_jsonl(folder / "changed.jsonl", changed)
    write_jsonl(folder / "corrected.jsonl", [row | {"answers": ["2"]} for row in rows("corrected", 0.5, 3)])
    foreign = [row | {"answers": ["So it is 1.\n#### 1"]} for row in rows("foreign", 0.5, 3)]
    write_jsonl(folder / "foreign.jsonl", foreign)
    (folder / "python").symlink_to(warm_python / "python")
    return folder


def compare(checkout: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """In a process of its own, where ranks may be forked."""
    return subprocess.run(
        [checkout / "python", "-c", RUN, "compare", *words],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )


def told(checkout: Path, *words: str) -> str:
    """What the command prints, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(checkout)
        done = CliRunner().invoke(app, ["compare", *words])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_two_models_of_the_pipeline_by_name(checkout: Path) -> None:
    printed = told(checkout, "sft", "rl")
    assert "rl is better than sft: +0.292 [+0.2" in printed
    assert "with 80 % power, this set detects differences of at least 0." in printed
    assert "pass@1 by level" in printed and "test: 60 problems" in printed
    back = told(checkout, "reports/evaluate:rl", "reports/evaluate/responses.jsonl:sft")
    assert "rl is better than sft: -0.292" in back


def test_all_figures_as_json(checkout: Path) -> None:
    found = json.loads(told(checkout, "sft", "rl", "--json", "--metric", "maj_at_4"))
    assert (found["benchmark"], found["metric"], found["problems"]) == ("test", "maj_at_4", 60)
    test, models = found["comparison"], found["models"]
    assert test["difference"] == pytest.approx(models["rl"]["mean"] - models["sft"]["mean"])
    assert test["shown"] and test["detectable"] > 0 and test["p_value"] < 0.05
    assert models["rl"]["mean"] != pytest.approx(models["rl"]["pass_at_1"])
    levels = found["by_level"]
    assert set(levels) == {"0", "1"} and found["by_subject"] == {}
    assert levels["0"]["problems"] == 30
    weighted = sum(row["difference"] * row["problems"] for row in levels.values()) / 60
    assert weighted == pytest.approx(test["difference"])
    assert all(row["low"] < row["difference"] < row["high"] for row in levels.values())


def test_several_seeds_and_a_difference_that_is_not_shown(checkout: Path) -> None:
    steps = [",".join(f"study/{step}_test-s{seed}" for seed in range(3)) for step in ("sft", "rl")]
    printed = told(checkout, *steps)
    assert "no difference shown between sft and rl" in printed
    assert "3 and 3 runs; this set shows differences from 0." in printed
    assert "sft, by run: 0." in printed


MISTAKES: list[tuple[list[str], str]] = [
    (["sft", "few.jsonl"], "1 problems that another run lacks (p059"),
    (["sft", "gsm.jsonl"], "an evaluation on test, gsm.jsonl on gsm8k"),
    (["sft", "none.jsonl"], "none.jsonl: no response in it"),
    (["sft", "other.jsonl"], "other.jsonl, line 1: no field 'model'"),
    (["sft", "twice.jsonl"], "twice.jsonl, line 481: sample 0 of p000 occurs twice"),
    (["sft", "cut.jsonl"], "some problems have 7 responses and others 8"),
    (["sft", "changed.jsonl"], "problem p000 asks one thing"),
    (["sft", "corrected.jsonl", "--common"], "the true answer 1 in reports/evaluate/responses.jsonl and 2 in"),
    (["sft", "base"], "model 'base' is not in it; there are: rl, sft"),
    (["sft", "reports/evalute:rl"], "reports/evalute: no such file or folder (did you mean "),
    (["sft", "reports/evaluate"], "model is one of rl, sft; name one as"),
    (["sft", "params"], "params: it contains neither responses nor a model"),
    (["sft", ","], "nothing to compare"),
    (["sft", "rl", "--metric", "maj_at_9"], "K from 1 to 8"),
    (["sft", "rl", "--metric", "accuracy"], "no metric 'accuracy'"),
    (["sft", "rl", "--looks", "2", "--metric", "maj_at_8"], "--looks compares pass_at_1"),
    (["sft", "rl", "--forgetting", "--difference", "0.1"], "--forgetting goes with neither"),
    (["sft", "rl", "--benchmark", "gsm8k"], "benchmark 'gsm8k' is not in it; there are: test"),
]


def test_what_cannot_be_compared_is_said_in_one_sentence(checkout: Path) -> None:
    for words, message in MISTAKES:
        with pytest.raises(UserError) as refused:
            told(checkout, *words)
        assert message in str(refused.value) and "\n" not in str(refused.value), words
    done = compare(checkout, "sft", "few.jsonl")
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_a_model_that_is_not_evaluated_yet_is_not_said_to_have_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = load_params(ROOT / "params")
    (tmp_path / "models" / "sft").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^sft: no such file or folder \(models/sft has not been evaluated here: "):
        find_run("sft", tmp_path, None, params)
    with pytest.raises(UserError, match=r"^rl: no such file or folder \(it has not run here: mathrl run rl\)"):
        find_run("rl", tmp_path, None, params)


def test_problems_in_common_by_choice_and_true_answers_in_other_words(checkout: Path) -> None:
    assert "test: 59 problems" in told(checkout, "sft", "few.jsonl", "--common")
    assert "test: 60 problems" in told(checkout, "sft", "foreign.jsonl")


def test_model_folders_are_evaluated_on_the_spot_and_once(checkout: Path) -> None:
    base = FreshModel(hidden_size=32, intermediate_size=48, layers=1, heads=2, alphabet="arithmetic")
    for seed in range(2):
        make_base(Model(base=base), checkout / f"pipelines/recipes/study/step-s{seed}/model", seed)
    problems = [
        Problem(id=f"p{n}", question=f"{n}+{n}=", answers=(str(2 * n),), source="chain", split="test", level=1)
        for n in range(8)
    ]
    write_problems(checkout / "data/curated/test.jsonl", problems)
    write_problems(checkout / "data/curated/sft.jsonl", problems)
    options = ["--set", "evaluate.samples=2", "--set", "evaluate.max_tokens=4", "--set", "run.device=cpu"]
    words = ["study/step-s0", "pipelines/recipes/study/step-s1/model", *options]
    done = compare(checkout, *words)
    assert done.returncode == 0, done.stderr
    assert "no difference shown between" in done.stdout and "test: 8 problems" in done.stdout
    kept = sorted((checkout / "reports/evaluations").glob("step-s?-test-*/responses.jsonl"))
    stamps = [file.stat().st_mtime_ns for file in kept]
    assert len(kept) == 2
    assert compare(checkout, *words).stdout == done.stdout
    assert [file.stat().st_mtime_ns for file in kept] == stamps


@pytest.mark.parametrize("benchmark", ["test", "own.jsonl", "own/set::train"])
def test_an_evaluation_is_kept_for_the_problems_that_it_was_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: str
) -> None:
    # The hub's client reads a folder too.
    place = {"test": "data/curated/test.jsonl", "own/set::train": "own/set/train.jsonl"}
    params, file = load_params(), Path(place.get(benchmark, benchmark))
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    outputs = []
    for number, answer in enumerate(("2", "2", "3")):
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / f"cache{number}"))
        curated = {"id": "1", "answers": [answer], "source": "s", "split": "test"}
        row = {"question": "1+1=", **(curated if benchmark == "test" else {"answer": answer})}
        write_jsonl(file, [row])
        outputs.append(output_of(Path("model"), "model", benchmark, params))
    assert outputs[0] == outputs[1] != outputs[2]


def test_models_are_compared_part_by_part(checkout: Path) -> None:
    """After the test above, whose models and problems these are."""
    if not (checkout / "pipelines/recipes/study/step-s1/model").exists():
        pytest.skip("the models of the test above")
    options = ["--set", "evaluate.samples=2", "--set", "evaluate.max_tokens=4", "--set", "run.device=cpu"]
    words = ["study/step-s0", "study/step-s1", "--looks", "2", "--difference", "0.5", *options]
    done = compare(checkout, *words)
    assert done.returncode == 0, done.stderr
    first, second, excluded, verdict = done.stdout.splitlines()
    assert first.startswith("look 1 of 2: 4 problems") and second.startswith("look 2 of 2: 8 problems")
    assert excluded == "a difference of 0.5 or more is excluded" and "no difference shown" in verdict
    parts = list((checkout / "reports/evaluations").glob("step-s?-test-*-?of2/responses.jsonl"))
    ids = [{row["problem_id"] for row in read_jsonl(file)} for file in parts if "step-s0" in str(file)]
    assert len(parts) == 4 and not set.intersection(*ids) and len(set.union(*ids)) == 8
    values: list[dict[str, float]] = [{}, {}]
    for file in parts:
        values["step-s1" in str(file)] |= accuracies(read_run(file, None, None).rows)
    test = paired.compare("a", "b", *values, responses=2, confidence=1 - look_levels(2, 0.05)[1])
    assert f"8 problems, {test.difference:+.3f} [{test.low:+.3f}, {test.high:+.3f}]" in second
    for words, problem in (
        (["sft", "rl", "--looks", "2"], "sft: --looks evaluates models part by part"),
        (["study/step-s0", "study/step-s1", "--looks", "5", *options], "test has 8 problems"),
        (["sft", "rl", "--difference", "0.1"], "--difference belongs to --looks"),
    ):
        with pytest.raises(UserError, match=problem):
            told(checkout, *words)
