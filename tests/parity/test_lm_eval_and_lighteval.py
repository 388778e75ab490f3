"""lm-evaluation-harness and lighteval, whole, beside mathrl's evaluation: the same responses in, the same scores out.

In the form that a harness asks for, all three accept the right responses and no wrong one. How they differ in other
forms is benchmarks/harness_parity.py's subject, and docs/explanation/other_harnesses.md says why.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import harness_parity as peers
from mathrl.compose import load_params
from mathrl.core.types import Problem
from mathrl.data.templates import prompt_text
from mathrl.evaluation.benchmark import benchmark_problems, prompt_of

pytestmark = pytest.mark.skipif("MATHRL_DATA" not in os.environ, reason="MATHRL_DATA has no problem sets")
needs_lighteval = pytest.mark.skipif(find_spec("lighteval") is None, reason="lighteval is not installed")
ROWS = 4
LM_EVAL_FORM = {"gsm8k": "#### A", "math500": "Final Answer: ... $A$. I hope", "aime24": r"\boxed{A}", "mmlu": " B"}
# The line `ANSWER: A`, which lighteval asks for on MATH-500, it reads only where A is no LaTeX.
LIGHTEVAL_FORM = LM_EVAL_FORM | {"math500": r"\boxed{A}", "aime24": r"Therefore, ... $\boxed{A}$. I hope"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("data")
    peers.write_data(folder, ROWS)
    with peers.local_hub(folder):
        yield folder


def answered(of: peers.Set, folder: Path, form: str) -> tuple[list[Problem], dict[bool, list[str]]]:
    """The problems, and right and wrong responses to them in this form."""
    problems = benchmark_problems(of.name, load_params(overrides=[f"evaluate.data_folder={folder}"]))
    rows = peers.mmlu_rows("test") if of.name == "mmlu" else [{}] * len(problems)
    return problems, peers.responses(of, form, problems, rows)


@pytest.mark.parametrize("of", peers.SETS, ids=lambda of: of.name)
def test_lm_eval_scores_its_own_form_as_mathrl_does(of: peers.Set, folder: Path) -> None:
    if of.name == "math500" and find_spec("math_verify") is None:
        pytest.skip("lm-eval's MATH-500 needs math-verify")
    problems, texts = answered(of, folder, LM_EVAL_FORM[of.name])
    for right, each in texts.items():
        theirs, _ = peers.lm_eval_scores(of, each)
        ours = peers.our_scores(problems, each)["mathrl lenient"]
        assert ours == [float(right)] * len(problems)
        assert all(scores == ours for scores in theirs.values()), theirs


@needs_lighteval
@pytest.mark.parametrize("of", peers.SETS, ids=lambda of: of.name)
def test_lighteval_scores_its_own_form_as_mathrl_does(of: peers.Set, folder: Path) -> None:
    problems, texts = answered(of, folder, LIGHTEVAL_FORM[of.name])
    for right, each in texts.items():
        (theirs,) = peers.lighteval_scores(of, folder, each)[0].values()
        assert theirs == peers.our_scores(problems, each)["mathrl lenient"] == [float(right)] * len(problems)


def test_the_question_of_gsm8k_is_asked_in_the_same_words(folder: Path) -> None:
    of = peers.SETS[0]
    params = load_params(overrides=["evaluate.prompts=published", f"evaluate.data_folder={folder}"])
    problems, texts = answered(of, folder, "#### A")
    asked, shots = prompt_of(of.name, params, problems)
    ours = prompt_text(problems[0], asked.prompt, None, shots)
    theirs = peers.lm_eval_scores(of, texts[True])[1][0]
    assert ours.rpartition("\n\n")[2] == theirs.rpartition("\n\n")[2] == f"Question: {problems[0].question}\nAnswer:"
    assert (ours.count("\n\nQuestion:"), theirs.count("\n\nQuestion:")) == (8, 5)


def test_a_small_model_answers_alike_through_lm_eval_and_mathrl(folder: Path, tmp_path: Path) -> None:
    theirs, ours = peers.greedy_texts(tmp_path, count=4)
    assert theirs == ours and len(set(ours)) > 1
