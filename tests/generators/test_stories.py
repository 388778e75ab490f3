"""Stories of events: an independent solver reads the numbers off the text, and held-out templates stay apart."""

import re
from fractions import Fraction
from itertools import pairwise

import pytest

from mathrl.core.errors import UserError
from mathrl.core.types import Problem
from mathrl.generators import generate
from mathrl.generators.words import held_out, sentences

# What becomes of n things, from the numbers of a sentence in the order in which they stand in the text.
SOLVERS = {
    "has": lambda n, a: a,
    "box": lambda n, a: a,
    "morning": lambda n, a: a,
    "drawer": lambda n, a: a,
    "boxes": lambda n, a, b: sum(b for _ in range(a)),
    "shelves": lambda n, a, b: sum(b for _ in range(a)),
    "two_bags": lambda n, a, b: a + b,
    "buys": lambda n, a: n + a,
    "given": lambda n, a: n + a,
    "post": lambda n, a: n + a,
    "wins": lambda n, a: n + a,
    "finds": lambda n, a: n + a,
    "gives": lambda n, a: n - a,
    "breaks": lambda n, a: n - a,
    "loses": lambda n, a: n - a,
    "takes": lambda n, a: n - a,
    "swaps": lambda n, a: n - a,
    "packets": lambda n, a, b: n + sum(b for _ in range(a)),
    "visitors": lambda n, a, b: n + sum(b for _ in range(a)),
    "each_friend": lambda n, a, b: n - sum(b for _ in range(a)),
    "jars": lambda n, a, b: n - sum(b for _ in range(a)),
    "times": lambda n, a: sum(n for _ in range(a)),
    "multiplies": lambda n, a: sum(n for _ in range(a)),
    "piles": lambda n, a: Fraction(n, a),
    "shares": lambda n, a: Fraction(n, a),
    "now": lambda n: n,
    "end": lambda n: n,
    "up_with": lambda n: n,
    "money": lambda n, a: sum(n for _ in range(a)),
    "friend_more": lambda n, a: n + a,
    "friend_fewer": lambda n, a: n - a,
    "bags": lambda n, a: Fraction(n, a),
    "together": lambda n, a: n + a,
}
COUNTS = {"sft": 1500, "rl": 300}


def stories(templates: str, counts: dict[str, int], **options: object) -> list[Problem]:
    return list(generate("story", counts, {"templates": templates, **options}, seed=0, name=templates))


SEEN, UNSEEN = stories("training", COUNTS), stories("held_out", {"test": 400})


def solved(problem: Problem) -> str:
    numbers = iter(re.findall(r"\d+", problem.question))
    n = Fraction(0)
    for name in problem.extra["template"].split("/"):
        solver = SOLVERS[name]
        n = solver(n, *(int(next(numbers)) for _ in range(solver.__code__.co_argcount - 1)))
    assert next(numbers, None) is None
    return str(n)


def test_an_independent_solver_gets_every_answer() -> None:
    for problem in [*SEEN, *UNSEEN]:
        assert problem.answers == (solved(problem),), problem
        lines = (problem.solution or "").split(";")
        assert problem.level == len(lines)
        for line in lines:
            a, sign, b, equals, c = re.split(r"([-+*/=])", line)
            value = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": Fraction}[sign](int(a), int(b))
            assert equals == "=" and value == int(c) and 0 < int(c) <= 99
    wrong = SEEN[0].with_(answers=(str(int(SEEN[0].answers[0]) + 1),))
    assert wrong.answers != (solved(wrong),)
    told = {name for problem in [*SEEN, *UNSEEN] for name in problem.extra["template"].split("/")}
    assert told == set(SOLVERS) == {s.name for part in ("start", "event", "question") for s in sentences(part)}


def test_no_training_problem_has_a_pair_of_sentences_that_is_held_out() -> None:
    def pairs(problems: list[Problem]) -> list[set[tuple[str, str]]]:
        return [set(pairwise(problem.extra["template"].split("/"))) for problem in problems]

    trained = set().union(*pairs(SEEN))
    assert not [pair for pair in trained if held_out(*pair)]
    assert all(any(held_out(*pair) for pair in told) and not told <= trained for told in pairs(UNSEEN))
    assert not {p.extra["template"] for p in SEEN} & {p.extra["template"] for p in UNSEEN}
    assert {name for told in pairs(SEEN) for pair in told for name in pair} == set(SOLVERS), (
        "each sentence is trained on"
    )
    assert [p.extra["new_pairs"] for p in UNSEEN] == [
        sum(held_out(*pair) for pair in pairwise(p.extra["template"].split("/"))) for p in UNSEEN
    ]


def test_all_templates_are_both_kinds() -> None:
    new = [problem.extra["new_pairs"] > 0 for problem in stories("all", {"rl": 400})]
    assert 0.3 < sum(new) / len(new) < 0.8


def test_the_largest_result_is_kept_and_wrong_options_are_named() -> None:
    small = stories("all", {"rl": 100}, largest_result=30, steps=[1, 2])
    assert max(int(line.split("=")[1]) for p in small for line in (p.solution or "").split(";")) <= 30
    assert {p.level for p in small} == {1, 2}
    with pytest.raises(UserError, match="templates"):
        stories("unseen", {"rl": 1})
    with pytest.raises(UserError, match="largest_result"):
        stories("all", {"rl": 1}, largest_result=5)
