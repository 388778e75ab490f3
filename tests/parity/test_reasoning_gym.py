"""Our generators and graders beside reasoning-gym's, on the tasks that both have.

Its countdown answers go through our grader and ours through its, right and wrong ones; greatest common divisors, least
common multiples, linear equations and fractions are graded by both.
"""

import random
from fractions import Fraction
from typing import Any, get_args

import pytest

from mathrl.core.errors import UserError
from mathrl.generators import generate
from mathrl.grading import countdown_correct, grade, read_truth
from mathrl.params.generators import GymName

TASKS = ("gcd", "lcm", "simple_equations", "simple_geometry", "products", "fraction_simplification")


@pytest.fixture(scope="module")
def gym() -> Any:
    import reasoning_gym

    return reasoning_gym


def variants(expression: str, numbers: list[int], target: int) -> list[str]:
    """The expression, and others that are wrong: another sign, a number left out, one used twice, the target alone."""
    changed = expression.replace("+", "-", 1) if "+" in expression else expression.replace("-", "+", 1)
    return [expression, changed, expression.rsplit("+", 1)[0], f"{expression}+{numbers[0]}", str(target), "no way"]


def test_countdown_problems_of_each_are_graded_alike_by_both(gym: Any) -> None:
    """A reward of 1 is correct; reasoning-gym's others are for trying."""
    theirs = gym.create_dataset("countdown", size=100, seed=3, min_numbers=3, max_numbers=5)
    verdicts = []
    for entry in theirs:
        numbers, target = entry["metadata"]["numbers"], entry["metadata"]["target"]
        for answer in variants(entry["answer"], numbers, target):
            right = theirs.score_answer(answer, entry) == 1.0
            assert countdown_correct(answer, numbers, target)[0] == right, (entry, answer)
            verdicts.append(right)
    for problem in generate("countdown", {"rl": 100}, {}, seed=3):
        truth = read_truth(problem.answers[0])
        assert truth is not None
        numbers, target = list(truth[0]), int(truth[1])
        entry = {"metadata": {"numbers": numbers, "target": target}}
        for answer in variants(str(problem.control.demonstrated_answer), numbers, target):
            right = theirs.score_answer(answer, entry) == 1.0
            assert countdown_correct(answer, numbers, target)[0] == right, (problem, answer)
            verdicts.append(right)
    assert 200 <= sum(verdicts) < len(verdicts) / 2, "every right one and many wrong ones"


@pytest.mark.parametrize("task", TASKS)
def test_answers_to_its_tasks_are_graded_alike_by_both(gym: Any, task: str) -> None:
    theirs, rng = gym.create_dataset(task, size=60, seed=3), random.Random(0)
    for entry in theirs:
        truth = entry["answer"]
        wrong = [f"{rng.randint(2, 9)}{truth}"] if "/" not in truth and "frac" not in truth else ["7/11", "1/2"]
        for answer in (truth, *wrong):
            right = theirs.score_answer(answer, entry) == 1.0
            assert right == (answer == truth) == grade(f"\\boxed{{{answer.strip('$')}}}", truth).correct, (
                entry,
                answer,
            )


def test_its_grader_accepts_our_answers_to_the_tasks_that_both_have(gym: Any) -> None:
    """The fraction in lowest terms by its parser."""
    scorer = gym.create_dataset("fraction_simplification", size=1, seed=0)
    for problem in generate("fractions", {"rl": 60}, {"kinds": [2]}, seed=2):
        value = Fraction(problem.answers[0])
        if value.denominator > 1:
            simple = {"simplified_numerator": value.numerator, "simplified_denominator": value.denominator}
            entry = {"metadata": {**simple, "numerator": 2 * value.numerator, "denominator": 2 * value.denominator}}
            assert scorer.score_answer(problem.answers[0], entry) == 1.0
            assert scorer.score_answer(f"{2 * value.numerator}/{2 * value.denominator}", entry) < 1.0


@pytest.mark.parametrize("task", get_args(GymName))
def test_problems_of_a_task_have_one_exact_answer(gym: Any, task: str) -> None:
    """Drawn again they are the same; both graders take their answer, and no other number near it."""
    counts, options = {"rl": 25, "test": 5}, {"tasks": [{"name": task}]}
    problems = list(generate("reasoning_gym", counts, options, seed=1))
    assert problems == list(generate("reasoning_gym", counts, options, seed=1))
    assert len({p.question for p in problems}) == 30 and {p.subject for p in problems} == {task}
    theirs = gym.create_dataset(task, size=1, seed=0)
    scored = [theirs.score_answer(p.answers[0], {"question": p.question, "answer": p.answers[0]}) for p in problems]
    assert scored == [1.0] * 30
    for problem in problems:
        (truth,) = problem.answers
        value = Fraction(truth)
        assert grade(f"\\boxed{{{truth}}}", truth).correct, problem
        assert not grade(f"\\boxed{{{value + 1}}}", truth).correct and not grade("\\boxed{}", truth).correct, problem


def test_tasks_are_levels_and_their_options_the_librarys(gym: Any) -> None:
    tasks = [{"name": "products", "options": {"max_digits": digits}} for digits in (1, 3)]
    problems = list(generate("reasoning_gym", {"rl": 20}, {"tasks": tasks}, seed=0))
    largest = {n: max(Fraction(p.answers[0]) for p in problems if p.level == n) for n in (1, 2)}
    assert largest[1] <= 81 < largest[2] and all(p.solution is None for p in problems)
    with pytest.raises(UserError, match=r"tasks\.0: options of gcd: .*min_digits"):
        wrong = {"tasks": [{"name": "gcd", "options": {"min_digits": 2}}]}
        next(generate("reasoning_gym", {"rl": 1}, wrong, seed=0))
