"""Twins of test problems: as hard, never the problem itself, never known."""

import json
import random

import pytest

from mathrl.compose import load_params
from mathrl.core.types import Problem
from mathrl.data.twins import NAMES, PHRASES, crowded_levels, generators_of, renumber, reword, twins
from mathrl.generators import generate

CHAINS = list(generate("chain", {"test": 40, "sft": 200}, {"steps": [2, 3], "notation": "bare"}, seed=3, name="chain"))
TEST = [problem for problem in CHAINS if problem.split == "test"]
GENERATORS = generators_of(load_params().curate.sources)


def test_generated_twins_have_the_level_an_own_answer_and_no_known_question() -> None:
    known = {problem.question for problem in CHAINS}
    for problem in TEST:
        made = twins(problem, "generated", 3, generators=GENERATORS, known_questions=known)
        assert len({twin.question for twin in made}) == 3 == len({twin.id for twin in made})
        for twin in made:
            assert twin.question not in known and twin.level == problem.level == len(twin.solution.split(";"))  # type: ignore[union-attr]
            assert twin.solution is not None and twin.solution.rpartition("=")[2] == twin.answers[0]


def test_twins_are_the_same_for_the_same_seed_and_others_for_another() -> None:
    def questions(seed: int) -> list[str]:
        return [twin.question for twin in twins(TEST[0], "generated", 3, generators=GENERATORS, seed=seed)]

    assert questions(1) == questions(1) != questions(2)


def test_without_generator_level_or_numbers_there_is_no_twin() -> None:
    foreign = TEST[0].with_(source="gsm8k")
    assert twins(foreign, "generated", 2, generators=GENERATORS) == []
    assert twins(TEST[0].with_(level=9), "generated", 2, generators=GENERATORS) == []
    words = foreign.with_(question="Prove that the sum of two odd numbers is even.")
    assert twins(words, "renumbered", 2, generators={}) == [] == twins(words, "reworded", 2, generators={})


def test_renumbered_twins_have_numbers_of_as_many_digits_and_no_answer() -> None:
    problem = Problem("p", "Tom has 12 of 12 and 3.50, x_1 = \\frac{7}{20} and 1,024.", ("5",), "gsm8k", "test")
    for seed in range(20):
        for twin in twins(problem, "renumbered", 2, generators={}, seed=seed):
            first, second, *_ = numbers = [word.strip(",.{}") for word in twin.question.split() if word[0].isdigit()]
            assert first == second != "12" or len(set(numbers)) > 1
            assert len(first) == 2 and first[0] != "0" and "x_1 = \\frac{" in twin.question and twin.answers == ()
    assert renumber("no numbers", random.Random(0)) == "no numbers"


def test_reworded_twins_keep_numbers_and_the_answer() -> None:
    question = "What is the value of 7+5 such that Tom and Anna buys 3 each day? Tom pays."
    problem = Problem("p", question, ("12",), "math", "test", solution="7+5=12")
    (twin,) = twins(problem, "reworded", 1, generators={})
    assert twin.answers == ("12",) and twin.solution is None and "7+5" in twin.question
    assert "Tom" not in twin.question and "What is" not in twin.question and "buys" not in twin.question
    (tom, anna) = (name for name in NAMES if name in twin.question)
    assert twin.question.count(tom) + twin.question.count(anna) == 3, "the same person under the same name"
    crowd = "James John Mary Tom Janet Maria Jack Sarah Mark Josh"
    assert len({*reword(crowd, random.Random(0)).split()} - {*crowd.split()}) == len(NAMES)


@pytest.mark.parametrize("group", PHRASES)
def test_a_phrase_becomes_another_of_its_group_and_nothing_else_changes(group: tuple[str, ...]) -> None:
    for seed in range(4):
        text = reword(f"({group[0]}) 7", random.Random(seed))
        assert text in {f"({phrase}) 7" for phrase in group[1:]}


def test_a_level_whose_questions_are_mostly_known_has_no_twins() -> None:
    """Chains of 1 operation on numbers up to 9 are some two hundred; those of 6 are millions."""
    options = {"steps": [1, 6], "notation": "bare"}
    source = {"type": "generated", "name": "chain", "generator": "chain", "counts": {}, "options": options}
    generators = generators_of(load_params(overrides=[f"curate.sources={json.dumps([source])}"]).curate.sources)
    drawn = list(generate("chain", {"test": 100}, options, seed=0))
    known = {problem.question for problem in drawn}
    assert crowded_levels(drawn, generators, known) == {("chain", 1)}
    assert crowded_levels(drawn, generators, ()) == set() == crowded_levels(drawn, {}, known)
