"""Word problems: an independent solver reads the numbers off the text, and no distractor changes an answer."""

import random
import re
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from mathrl.core.errors import UserError
from mathrl.generators import generate
from mathrl.generators.structure import Formula, Structure, structures
from mathrl.generators.words import WordProblem, people
from mathrl.params.generators import WordProblemOptions

# What each question asks, from its numbers in the order in which they stand in the text. Written from the questions, as
# closed formulas or by trying, not from the steps of the generator.
Q = Fraction
SOLVERS: dict[str, Any] = {
    "rolls": lambda a, b: sum(a for _ in range(b)),
    "evenings": lambda a, b: Q(a, b),
    "train_speed": lambda a, b: Q(a, b),
    "tap": lambda a, b, c: Q(a * c, b),
    "two_printers": lambda a, b, c: a * c + b * c,
    "leaking_tank": lambda a, b, c, d: a + b * d - c * d,
    "meeting": lambda a, b, c: next(Q(t) for t in range(1, a) if b * t + c * t == a),
    "catching_up": lambda a, d, b: next(t for t in range(1, 10**5) if b * t == a * (t + d)),
    "painters": lambda a, b, c: Q(a, c) * b,
    "typists": lambda a, b, c: a * c - b * c,
    "overtime": lambda a, b, c, d: sum(a if hour < b else c for hour in range(d)),
    "average_speed": lambda a, b, c, d: Q(a * b + c * d, a + c),
    "petrol": lambda a, _, b, c: Q(c, 100) * a * b,
    "masons": lambda a, b, c: (2 * a - b) * c,
    "two_pumps": lambda a, b, c, d: Q(a - b, c + d),
    "faulty_parts": lambda a, b, c, d: Q(100 - d, 100) * a * b * c,
    "dairy": lambda a, b, c, d, e: sum((a * b - c) * d for _ in range(e)),
    "eggs": lambda a: sum(12 for _ in range(a)),
    "ribbon": lambda a, b: Q(a * 100, b),
    "loaves": lambda b, a: Q(a * 1000, b),
    "film": lambda a, b: 60 * a + b,
    "runners": lambda a, b, c: Q(a * b * c, 1000),
    "laps": lambda a, b, c: Q(a * b * c, 1000),
    "piggy_bank": lambda a, twenty, b, fifty: a * twenty + b * fifty,
    "lorry": lambda a, b, c: 1000 * a - b * c,
    "stamping": lambda a, b: Q(60 * b, a),
    "piano": lambda a, b: Q(7 * a * b, 60),
    "medicine": lambda a, b, c: Q(a, b * c),
    "tiles": lambda a, b, c: a * b * c,
    "fence": lambda a, b, c: (a + b + a + b) * c,
    "lawn": lambda a, b, c, d: a * b - c * d,
    "paint": lambda a, b, c, d, e: Q(a * b - c * d, e),
    "fish_tank": lambda a, b, c: Q(a, 10) * Q(b, 10) * Q(c, 10),
    "avenue": lambda b, a: len(range(0, a + 1, b)),
    "evening_film": lambda a, b, c, d: (60 * c + d) - (60 * a + b),
    "homework": lambda a, b, c: (a + 2 * a + 2 * a - b) * c,
    "ferry": lambda a, b, c: (a + b) * c - b,
    "change": lambda a, b, c: c - a * b,
    "tickets": lambda a, b, c, d: a * b + c * d,
    "sale": lambda a, b: Q(100 - b, 100) * a,
    "saving": lambda a, b, c: next(Q(t) for t in range(1000) if b + c * t == a),
    "stall": lambda a, b, c, d: a * c - a * b - d,
    "bill": lambda a, b, c: Q(b, a) + Q(c, a),
    "batteries": lambda a, b, c: Q(c, a) * b,
    "household": lambda a, b, c: 12 * a - 12 * b - 12 * c,
    "museum": lambda a, b, c, d, e: a * c + b * d - e,
    "bake_sale": lambda a, b, c, d, e, f: Q(a * b + c * d - e, f),
    "two_shops": lambda a, b, c, d, e: Q(e, a) * b - Q(e, c) * d,
    "nuts": lambda a, b, c, d: Q(a * b + c * d, a + c),
    "courier": lambda a, b, c, d, e: (a + b) * c * e - d * e,
    "raise": lambda a, b: 12 * (Q(100 + b, 100) * a - a),
    "concert_hall": lambda a, b, c: Q(100 - b, 100) * a * c,
    "price_each": lambda a, b: Q(a, b),
    "more_than": lambda a, b: next(x for x in range(a) if x + b == a),
    "times_as_many": lambda a, b: (b + 1) * a,
    "apples": lambda a, b: 2 * a - b,
    "oak": lambda a, b: a - b,
    "grandmother": lambda a, b, c: a * b + c,
    "sum_and_difference": lambda a, b: next(x for x in range(a) if x + (x + b) == a),
    "three_collectors": lambda a, b: a + 2 * a + 2 * a + b,
    "points": lambda a, b: a + Q(a, b),
    "ratio": lambda a, b, c: Q(b, b + c) * a,
    "towers": lambda a, b, c: a - b + c,
    "twice_as_old": lambda a, b: next(t for t in range(100) if b + t == 2 * (a + t)),
    "sharing": lambda a, b: Q(a, b),
    "left_over": lambda a, b: a % b,
    "theatre": lambda a, b, c: a * b - c,
    "greenhouse": lambda a, b, c, d: Q(a * b * c, d),
    "library": lambda a, b, c, d, e: a * b - c + d + e,
    "bus_stops": lambda a, b, c, d, e: a - b + c - d + e,
    "temperature": lambda a, b, c: a + b - c,
    "cyclists": lambda a, b: Q(a * b, 100),
    "a_third": lambda a, b: Q(2 * a, 3) - b,
    "lamps": lambda a, b: Q(100 - b, 100) * a / 2,
    "average_run": lambda a, b, c, d: next(x for x in range(100) if Q(a + b + c + x, 4) == d),
    "test_average": lambda a, b, c: Q(a + b + c, 3),
    "orchard": lambda a, b, c, d: Q(100 - c, 100) * a * b * d,
}


STRUCTURES = structures()
ENGLISH = [structure for structure in STRUCTURES if structure.language == "en"]


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def test_there_are_sixty_structures_with_names_of_their_own_at_every_level() -> None:
    assert len(ENGLISH) >= 60 and len({structure.name for structure in ENGLISH}) == len(ENGLISH)
    assert set(SOLVERS) == {structure.name for structure in ENGLISH}
    levels = Counter((structure.language, structure.steps()) for structure in STRUCTURES)
    assert all(levels[language, steps] for language in ("en", "de", "fr", "es") for steps in range(1, 6))
    assert {structure.kind for structure in ENGLISH} == set(
        WordProblemOptions.model_fields["kinds"].annotation.__args__[0].__args__[0].__args__  # type: ignore[union-attr]
    )


@pytest.mark.parametrize("language", ["en", "de", "fr", "es"])
def test_an_independent_solver_gets_every_answer(language: str) -> None:
    options = {"languages": [language], "distractors": 0}
    seen = set()
    for problem in generate("word_problem", {"rl": 1200}, options, seed=3):
        name = problem.extra["structure"]
        assert problem.answers == (str(SOLVERS[name](*numbers(problem.question))),), problem
        assert problem.level == len((problem.solution or "").splitlines())
        seen.add(name)
    assert seen == {structure.name for structure in STRUCTURES if structure.language == language}


def test_a_distractor_adds_one_number_and_leaves_the_answer() -> None:
    with_one, without = WordProblem(distractors=1), WordProblem(distractors=0)
    for seed in range(400):
        level = 1 + seed % 5
        distracted, plain = (made.draw(random.Random(seed), level) for made in (with_one, without))
        assert distracted is not None and plain is not None
        assert (distracted.answer, distracted.solution) == (plain.answer, plain.solution)
        assert len(numbers(distracted.question)) == len(numbers(plain.question)) + 1
        assert not Counter(numbers(plain.question)) - Counter(numbers(distracted.question))
    share = sum(bool(p.extra["distractor"]) for p in generate("word_problem", {"rl": 400}, {}, seed=0)) / 400
    assert 0.15 < share < 0.35


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: f"{structure.name}-{structure.language}")
def test_every_structure_finds_numbers_and_always_takes_the_same_steps(structure: Structure) -> None:
    steps = {len(structure.draw(random.Random(seed))[1].lines) for seed in range(40)}
    assert steps == {structure.steps()}
    assert structure.distractor[0].isupper() or structure.distractor[0] == "{"
    assert structure.distractor.endswith(".") and "{z}" in structure.distractor
    for name, (low, high, *step) in structure.numbers.items():
        assert 2 <= low < high and f"{{{name}}}" in structure.text and (high - low) % (step[0] if step else 1) == 0


FLAWS = {
    "en": (r"(?:^|[.?] )\d", r"\ba [aeiou]", r"\ban [^aeiouh]", r"\b2 times as", r"\b(\w+) \1\b"),
    "de": (r"(?:^|[.?] )\d", r"\b(\w+) \1\b"),
    "fr": (r"(?:^|[.?] )\d", r"\b(?:que|de|le|la) [aeiouyàâéèêhAEIOUYÉH]", r"\w\?", r"\b(\w+) \1\b"),
    "es": (r"(?:^|[.?] )\d", r"\by [iI]", r"(?:^|[.] )[^¿?.]*\?", r"\b(\w+) \1\b"),
}


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: f"{structure.name}-{structure.language}")
def test_a_text_begins_no_sentence_with_a_figure_and_keeps_its_grammar(structure: Structure) -> None:
    """Articles, elisions, question marks, doubled words and "2 times as"."""
    for seed in range(20):
        rng = random.Random(seed)
        drawn, _, _ = structure.draw(rng)
        text = structure.tell(drawn, people(rng, structure.language), rng, distracted=True)
        assert not [flaw for flaw in FLAWS[structure.language] if re.search(flaw, text)], text
        assert not set("{}") & set(text) and "  " not in text


def test_a_flaw_of_grammar_is_found() -> None:
    assert re.search(FLAWS["en"][0], "He waits. 4 painters paint.") and re.search(FLAWS["en"][1], "It is a apple.")
    assert re.search(FLAWS["en"][2], "an book") and not re.search(FLAWS["en"][2], "an hour, an oak")
    assert re.search(FLAWS["fr"][1], "soit 3 de plus que Inès") and not re.search(FLAWS["fr"][1], "plus que Manon")
    assert re.search(FLAWS["es"][2], "Va a casa. Cuántos hay?") and not re.search(FLAWS["es"][2], "Va. ¿Cuántos hay?")


def test_kinds_and_levels_that_have_no_structure_are_named() -> None:
    with pytest.raises(UserError, match="no structure of 1 steps in language de of these kinds and names"):
        list(generate("word_problem", {"rl": 1}, {"kinds": ["percent"], "languages": ["de"]}, seed=0))
    kinds = {p.subject for p in generate("word_problem", {"rl": 60}, {"kinds": ["money", "rates"]}, seed=0)}
    assert kinds == {"money", "rates"}


def test_structures_are_chosen_and_left_out_by_name() -> None:
    names = {"rolls", "tap", "change"}

    def drawn(options: dict[str, Any]) -> set[str]:
        return {
            p.extra["structure"] for p in generate("word_problem", {"rl": 400}, {"steps": [1, 2], **options}, seed=0)
        }

    assert drawn({"structures": sorted(names)}) == names
    every = {structure.name for structure in ENGLISH if structure.steps() < 3}
    assert drawn({"without_structures": sorted(names)}) == every - names
    for field in ("structures", "without_structures"):
        with pytest.raises(UserError, match=r"no structure 'rols' \(did you mean rolls\?\); known: a_third, apples"):
            drawn({field: ["rols"]})
    with pytest.raises(UserError, match="no structure of 2 steps in language en of these kinds and names"):
        drawn({"structures": ["rolls"]})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a +", "not a formula"),
        ("c * 2", "'c' is neither a number"),
        ("__import__('os').getpid()", "neither a number"),
        ("a ** b", "neither a number"),
        ("a.real", "neither a number"),
        ("while a: b", "neither NAME = FORMULA"),
    ],
)
def test_a_formula_has_arithmetic_and_comparisons_of_its_numbers_alone(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=re.escape(problem)):
        Formula(text).value({"a": 4, "b": 2})
