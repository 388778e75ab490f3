from typing import Any

import pytest

from mathrl.core.types import Problem
from mathrl.data.rejection import Filters, preference_pairs, rejection_sample, step_labels
from mathrl.data.templates import demonstration
from mathrl.params.run import Prompt

PROBLEM = Problem("p", "1+1=", ("2",), "made", "rl")


def sample(response: str, correct: bool = True, truncated: bool = False, length: int = 10) -> dict[str, Any]:
    return {"response": response, "correct": correct, "truncated": truncated, "length": length}


def test_every_sample_is_kept_or_counted_with_its_reason() -> None:
    samples = [
        sample("so the sum is two"),
        sample("So the sum is  two"),
        sample("wrong", correct=False),
        sample("cut", truncated=True),
        sample("long", length=99),
        sample("the sum 所以 是 二 呢"),
        sample("again and again and again and again and again and again and again and again"),
        sample("another way to two"),
        sample("a third way"),
    ]
    filters = Filters(per_problem=2, max_length=50, language="en", repetition_ngram=3)
    kept, counts = rejection_sample([(PROBLEM, samples)], filters, seed=0)
    assert counts == {
        "kept": 2,
        "above per_problem": 1,
        "wrong": 1,
        "truncated": 1,
        "too long": 1,
        "mixed language": 1,
        "repetitive": 1,
        "duplicate": 1,
    }
    assert sum(counts.values()) == len(samples)
    assert [p.id for p in kept] == ["p#0", "p#1"] and {p.split for p in kept} == {"sft"}
    assert rejection_sample([(PROBLEM, samples)], filters, seed=0)[0] == kept
    assert demonstration(kept[0], Prompt(), terse=False) == kept[0].control.response


def test_a_pair_is_a_correct_and_a_wrong_response_of_one_problem() -> None:
    samples = [sample("r1"), sample("r1"), sample("r2"), sample("w1", False), sample("w2", False), sample("w3", False)]
    pairs = preference_pairs([(PROBLEM, samples)], per_problem=8, seed=0)
    assert len(pairs) == 2
    assert {p["chosen"] for p in pairs} == {"r1", "r2"} and len({p["rejected"] for p in pairs}) == 2
    assert all(p["rejected"].startswith("w") and p["problem_id"] == "p" for p in pairs)
    assert len(preference_pairs([(PROBLEM, samples)], per_problem=1, seed=0)) == 1
    assert preference_pairs([(PROBLEM, samples[:3])], per_problem=8, seed=0) == []


def test_a_step_is_good_when_some_continuation_is() -> None:
    assert step_labels([4, 1, 0], 4) == [
        {"soft": 1.0, "hard": 1.0},
        {"soft": 0.25, "hard": 1.0},
        {"soft": 0.0, "hard": 0.0},
    ]
    with pytest.raises(ValueError, match=r"counts \[5\] of 4"):
        step_labels([5], 4)
