"""The verifier as a reward function of verl and TRL: their calls and every form of a truth (tests/parity runs both)."""

import inspect
from typing import Any

import pytest

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.data.export import to_verl
from mathrl.grading.reward_functions import accuracy_reward, compute_score
from mathrl.rewards import RewardInput, build_reward

TRUTHS = [
    ("\\boxed{42}", "42"),
    ("\\boxed{42}", 42),
    ("\\boxed{42}", ["7", "42"]),
    ("\\boxed{42}", "6 times 7 is 42.\n#### 42"),
    ("\\boxed{\\frac12}", "So $x = \\boxed{0.5}$."),
    ("<answer>(8-2)*4</answer>", {"numbers": [2, 4, 8], "target": 24}),
]


@pytest.mark.parametrize(("response", "truth"), TRUTHS)
def test_every_form_of_a_truth(response: str, truth: Any) -> None:
    assert compute_score(data_source="any", solution_str=response, ground_truth=truth, extra_info={"index": 1}) == 1.0
    assert compute_score("any", "\\boxed{41}", truth) == 0.0
    chat = [[{"role": "assistant", "content": response}], [{"role": "assistant", "content": "\\boxed{41}"}]]
    assert accuracy_reward(completions=chat, prompts=["", ""], solution=[truth, truth], trainer_state=None) == [1, 0]


def test_numpy_arrays_as_verl_reads_them_from_parquet() -> None:
    numpy = pytest.importorskip("numpy")
    assert compute_score("any", "\\boxed{42}", numpy.array(["7", "42"], dtype=object)) == 1.0
    game = {"numbers": numpy.array([2, 4, 8]), "target": numpy.int64(24)}
    assert compute_score("any", "<answer>(8-2)*4</answer>", game) == 1.0


def test_every_answer_of_an_exported_row_is_accepted() -> None:
    """verl's `ground_truth` is one answer; before, a response with another accepted answer scored 0."""
    row = to_verl(Problem(id="p", question="A root of 4?", answers=("2", "-2"), source="s", split="rl"), 0)
    truth, extra = row["reward_model"]["ground_truth"], row["extra_info"]
    scores = [compute_score("s", f"\\boxed{{{answer}}}", truth, extra) for answer in ("2", "-2", "4")]
    assert scores == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("extra", [None, {}, {"answers": "42"}, {"answers": ["2"]}, {"answers": 2}, {"answers": None}])
def test_answers_of_another_meaning_do_not_count(extra: Any) -> None:
    assert [compute_score("s", f"\\boxed{{{answer}}}", "4", extra) for answer in ("4", "42", "2")] == [1.0, 0.0, 0.0]


def test_strict_extraction_and_mistakes() -> None:
    assert (
        compute_score("any", "It is 42", "42") == 1.0
        and compute_score("any", "It is 42", "42", extraction="strict") == 0
    )
    with pytest.raises(UserError, match="strict or lenient"):
        compute_score("any", "42", "42", extraction="loose")
    with pytest.raises(UserError, match="no column ground_truth, solution, answer"):
        accuracy_reward(["42"], truth=["42"])


def test_the_signature_is_verls_also_within_mathrl() -> None:
    names = list(inspect.signature(compute_score).parameters)
    assert names[:4] == ["data_source", "solution_str", "ground_truth", "extra_info"]
    path = "mathrl.grading.reward_functions.compute_score"
    reward = build_reward({"parts": [{"type": "function", "options": {"path": path}}]})
    assert [row.overall for row in reward.score([RewardInput("#### 4", ("4",)), RewardInput("#### 5", ("4",))])] == [
        1,
        0,
    ]
