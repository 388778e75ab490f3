"""The verifier as a reward function of other frameworks: `compute_score` for verl, `accuracy_reward` for TRL.

docs/how_to/verifier.md shows the one line that each of them needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mathrl.core.errors import UserError
from mathrl.grading.extract import ExtractionMode, extract
from mathrl.grading.grade import grade_batch

TRUTH_COLUMNS = ("ground_truth", "solution", "answer")


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, *, extraction: str = "lenient"
) -> float:
    r"""1.0 for a correct answer, else 0.0: verl's `custom_reward_function` (verl 0.9, trainer/ppo/reward.py).

    Args:
        data_source: Not used; verl passes it by name.
        ground_truth: An accepted answer or several; a solution whose answer is marked; or the dict of a Countdown.
        extra_info: With `answers` that have the ground truth among them, each of these is accepted: the rows of
            `mathrl data export --format verl`, where verl wants one ground truth.
        extraction: As in `grade`; in verl a key of `reward_kwargs`.

    >>> compute_score("gsm8k", "so \\boxed{1/2}", "0.5")
    1.0
    >>> compute_score("roots", "so \\boxed{-2}", "2", {"answers": ["2", "-2"]})
    1.0
    """
    return _scores([solution_str], [_all_answers(ground_truth, extra_info)], extraction)[0]


def accuracy_reward(completions: Sequence[Any], *, extraction: str = "lenient", **columns: Any) -> list[float]:
    r"""1.0 per correct completion, else 0.0: one of TRL's `reward_funcs` (TRL 1.16, trainer/grpo_trainer.py).

    Args:
        completions: Texts, or conversations, of which the last message counts.
        columns: The columns of the data set; the accepted answers are in `ground_truth`, `solution` or `answer`.

    Raises:
        UserError: there is no such column.

    >>> accuracy_reward(["\\boxed{1/2}", "\\boxed{3}"], solution=["So it is $\\boxed{0.5}$.", "4"])
    [1.0, 0.0]
    """
    truths = next((columns[name] for name in TRUTH_COLUMNS if columns.get(name) is not None), None)
    if truths is None:
        raise UserError(f"the data set has no column {', '.join(TRUTH_COLUMNS)}: name one of its columns so")
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return _scores(texts, truths, extraction)


def _scores(responses: Sequence[str], truths: Sequence[Any], extraction: str) -> list[float]:
    if extraction not in ("strict", "lenient"):
        raise UserError(f"extraction={extraction!r}: write strict or lenient")
    mode: ExtractionMode = "strict" if extraction == "strict" else "lenient"
    return [float(verdict.correct) for verdict in grade_batch(responses, [*map(accepted_answers, truths)], mode)]


def _all_answers(truth: Any, extra_info: Any) -> Any:
    """The `answers` of `extra_info`, if the truth is one of them; else the truth."""
    answers = extra_info.get("answers") if isinstance(extra_info, Mapping) else None
    if not isinstance(truth, str) or isinstance(answers, str) or not isinstance(answers, Iterable):
        return truth
    return list(answers) if truth in [*answers] else truth


def accepted_answers(truth: Any) -> str | list[str]:
    """The accepted answer, or answers: from a solution its marked answer, from an array its items."""
    if isinstance(truth, Mapping):
        return json.dumps({"numbers": [int(n) for n in truth["numbers"]], "target": int(truth["target"])})
    if not isinstance(truth, str):
        return [str(accepted_answers(item)) for item in truth] if hasattr(truth, "__iter__") else str(truth)
    return extract(truth, "strict").text or truth
