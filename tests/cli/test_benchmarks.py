"""Any benchmark: files with guessed fields, several at once, worked examples, and what a model has forgotten."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mathrl.core.errors import UserError
from mathrl.core.files import read_json, write_jsonl
from mathrl.core.types import Problem, write_problems
from mathrl.evaluation.benchmark import benchmark_problems, prompt_of, read_benchmark
from mathrl.evaluation.evaluate_model import next_question
from mathrl.models.base import make_base
from mathrl.params import Params
from mathrl.params.evaluate import Evaluate
from mathrl.params.run import FreshModel, Model, Prompt
from mathrl.reading.registry import REGISTRY
from mathrl.reports.find_responses import compare_forgetting

ROOT = Path(__file__).resolve().parents[2]


def params(demo: Params, **evaluate: Any) -> Params:
    return demo.model_copy(update={"evaluate": Evaluate(**evaluate)})


@pytest.fixture
def demo() -> Params:
    from mathrl.compose import load_params

    return load_params(ROOT / "params")


def exam(file: Path, count: int = 6) -> Path:
    write_jsonl(
        file, [{"exercise": f"Compute {n}+{n}.", "gold": str(2 * n), "way": f"{n}+{n}={2 * n}"} for n in range(count)]
    )
    return file


def test_the_fields_of_a_file_are_guessed_and_a_named_one_is_taken(tmp_path: Path, demo: Params) -> None:
    file = str(exam(tmp_path / "exam.jsonl"))
    read = read_benchmark(file, demo)
    assert [problem.answers for problem in read.problems[:2]] == [("0",), ("2",)]
    assert read.fields["answer_key"] == "gold" and not read.unread
    assert "answer_key gold (by its name" in read.notes("exam")[0]
    other = read_benchmark(file, params(demo, fields={file: {"answer_key": "way"}}))
    assert other.problems[1].answers == ("1+1=2",)
    assert [problem.source for problem in benchmark_problems(file, demo)] == 6 * ["exam.jsonl"]


def test_truths_that_cannot_be_parsed_are_counted_and_three_are_shown(tmp_path: Path, demo: Params) -> None:
    words = "see the figure on the left side of this page"
    rows = [{"question": f"Compute {n}.", "answer": words if n < 5 else str(n)} for n in range(9)]
    write_jsonl(tmp_path / "half.jsonl", rows)
    (_, note) = read_benchmark(str(tmp_path / "half.jsonl"), demo).notes("half")
    assert note.startswith("half: 5 of 9 true answers cannot be parsed") and note.count(words) == 3
    write_jsonl(tmp_path / "none.jsonl", rows[:5])
    with pytest.raises(UserError, match=r"can read none of the 5 true answers .*--field answer_key=NAME"):
        read_benchmark(str(tmp_path / "none.jsonl"), demo)


def test_rows_without_an_answer_are_no_benchmark(tmp_path: Path, demo: Params) -> None:
    file = str(exam(tmp_path / "exam.jsonl"))
    with pytest.raises(UserError, match=r"has no answer to grade against.*name a benchmark whose rows have one"):
        read_benchmark(file, params(demo, fields={file: {"answer_rule": "none"}}))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("exam.jsonl", "exam.jsonl: no such file"),
        ("gsm9k", r"no benchmark 'gsm9k' \(did you mean gsm8k\?\).*owner/name:config:split"),
    ],
)
def test_what_is_no_benchmark_is_refused(demo: Params, name: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read_benchmark(name, demo)


def test_published_prompts_take_worked_examples_from_the_train_split_and_never_the_asked_problem(
    tmp_path: Path, demo: Params
) -> None:
    train = [{"question": f"T{n}?", "answer": f"{n}+1={n + 1}\n#### {n + 1}"} for n in range(12)]
    write_jsonl(tmp_path / "gsm8k_train.jsonl", train)
    asked = [Problem(id="a", question="T1?", answers=("2",), source="gsm8k", split="test")]
    own, none = prompt_of("gsm8k", params(demo, data_folder=str(tmp_path)), asked)
    assert none == [] and own.prompt == demo.prompt
    published, shots = prompt_of("gsm8k", params(demo, data_folder=str(tmp_path), prompts="published"), asked)
    assert [shot.question for shot in shots] == [f"T{n}?" for n in (0, 2, 3, 4, 5, 6, 7, 8)]
    from mathrl.data.templates import prompt_text

    text = prompt_text(asked[0], published.prompt, None, shots)
    assert text.startswith("Question: T0?\nAnswer: 0+1=1\nThe answer is 1.\n\nQuestion: T2?")
    assert text.endswith("The answer is 9.\n\nQuestion: T1?\nAnswer:")
    few = demo.model_copy(
        update={"prompt": Prompt(few_shot=20), "evaluate": Evaluate(few_shot_from="gsm8k", data_folder=str(tmp_path))}
    )
    with pytest.raises(UserError, match=r"gsm8k has 11 problems with a worked solution outside gsm8k, .* is 20"):
        prompt_of("gsm8k", few, asked)


@pytest.mark.parametrize("name", ["gsm8k", "aime24", "math500", "mmlu"])
def test_a_base_model_ends_at_its_next_question_however_it_is_asked_in_words(name: str, demo: Params) -> None:
    published = params(demo, prompts="published")
    prompt = dict(REGISTRY[name].prompt) | {"few_shot": 0}
    asked = published.model_copy(update={"prompt": Prompt.model_validate(published.prompt.model_dump() | prompt)})
    assert next_question(asked) == ("\nQuestion:",)


def test_neither_a_bare_question_nor_a_chat_ends_at_a_question(demo: Params) -> None:
    def stops(api: str = "", **prompt: Any) -> bool:
        endpoint = {"endpoint": "http://localhost:8000/v1", "model": "m", "api": api} if api else None
        update = {"prompt": Prompt(**prompt), "evaluate": Evaluate.model_validate({"endpoint": endpoint})}
        return bool(next_question(demo.model_copy(update=update)))

    assert stops(template="boxed") and stops(template="plain", instruction="Put it into a box.")
    assert (
        not stops(template="plain") and not stops(template="r1_zero") and not stops(template="chat", instruction="Box.")
    )
    assert stops("completions", template="boxed") and not stops("chat", template="boxed")


def test_every_prompt_of_the_registry_is_one_that_the_section_takes() -> None:
    for named in REGISTRY.values():
        Prompt.model_validate(dict(named.prompt))
        assert "few_shot" not in named.prompt or "train" in REGISTRY[named.examples].splits


def test_several_files_are_evaluated_at_once_and_the_guess_is_kept(tmp_path: Path, warm_python: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    shutil.copytree(ROOT / "params", tmp_path / "params")
    base = FreshModel(hidden_size=32, intermediate_size=48, layers=1, heads=2)
    make_base(Model(base=base), tmp_path / "tiny", 0)
    (tmp_path / "sets").mkdir()
    exam(tmp_path / "sets/exam.jsonl")
    rows = [{"question": f"{n}+1=?", "choices": [str(n), str(n + 1)], "answer": 1} for n in range(5)]
    write_jsonl(tmp_path / "sets/choice.jsonl", rows)
    write_problems(tmp_path / "data/curated/sft.jsonl", [])
    words = ["evaluate", "--model", "../tiny", "--benchmark", "exam.jsonl", "--benchmark", "choice.jsonl", "--json"]
    words += ["--samples", "2", "--output", "out", "--set", "run.device=cpu", "--set", "evaluate.max_tokens=8"]
    done = subprocess.run(
        [warm_python / "python", "-c", "from mathrl.cli import main; main()", *words],
        cwd=tmp_path / "sets",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sets/exam.jsonl: fields were guessed: " in done.stderr
    both = json.loads(done.stdout)["evaluations"]
    assert [each["benchmark"] for each in both] == ["sets/exam.jsonl", "sets/choice.jsonl"]
    kept = read_json(tmp_path / "sets/out/choice.jsonl/fields.json")
    assert kept["sets/choice.jsonl"]["fields"]["choices_key"] == "choices"
    row = json.loads((tmp_path / "sets/out/choice.jsonl/responses.jsonl").read_text().splitlines()[0])
    assert row["answers"] == ["B", "1"] and row["question"] == "0+1=?\n\n(A) 0\n(B) 1"


def responses(file: Path, model: str, right: dict[str, float], count: int = 200) -> Path:
    """Responses of a model that is right on a share of each benchmark's problems."""
    rows = [
        {"model": model, "benchmark": name, "problem_id": f"p{n}", "sample": 0, "correct": n < share * count,
         "extracted": "1", "length": 3, "truncated": False, "question": f"q{n}"}
        for name, share in right.items()
        for n in range(count)
    ]  # fmt: skip
    write_jsonl(file, rows)
    return file


def test_forgetting_names_what_was_lost_and_corrects_for_the_number_of_benchmarks(tmp_path: Path, demo: Params) -> None:
    before = responses(tmp_path / "before.jsonl", "sft", {"mmlu": 0.6, "ifeval": 0.5, "math": 0.2, "other": 0.1})
    after = responses(tmp_path / "after.jsonl", "rl", {"mmlu": 0.4, "ifeval": 0.505, "math": 0.5})
    found = compare_forgetting((str(before), str(after)), tmp_path, demo, ())
    outcomes = {each["benchmark"]: each["outcome"] for each in found}
    assert outcomes == {"mmlu": "lost", "ifeval": "no loss shown", "math": "gained"}
    ps = [each["comparison"]["p_value"] for each in found]
    assert (
        found[1]["corrected_p"] == pytest.approx(max(ps))
        and found[0]["corrected_p"] > found[0]["comparison"]["p_value"]
    )
    alone = compare_forgetting((str(before), str(after)), tmp_path, demo, ["math"])
    assert [each["benchmark"] for each in alone] == ["math"]
    runs = [f"{side},{responses(tmp_path / f'again_{side.name}', side.stem, {'mmlu': share, 'math': 0.5})}"
            for side, share in ((before, 0.6), (after, 0.4))]  # fmt: skip
    both = compare_forgetting((runs[0], runs[1]), tmp_path, demo, ())
    assert [each["benchmark"] for each in both] == ["mmlu", "math"], "those that every run of several seeds has"
