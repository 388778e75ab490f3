"""Twins of a test problem: problems that are as hard, and that a model cannot have met with the benchmark.

| kind | twin | answer |
|---|---|---|
| generated | another draw of the problem's generator at its level | the twin's own |
| renumbered | the question with every number replaced by one of as many digits | none |
| reworded | the question in other words, by rules | that of the problem |
"""

import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from mathrl.core.hashing import derive_seed
from mathrl.core.types import Problem
from mathrl.generators.draft import Generator
from mathrl.generators.generate import make_generator
from mathrl.params.data import Source
from mathrl.params.generators import GeneratedSource

TwinKind = Literal["generated", "renumbered", "reworded"]
TRIES = 100
DRAWS, MOST_KNOWN = 400, 0.05  # draws by which a level is judged, and the share of known questions among them
NUMBER = re.compile(r"(?<![\w\\.])\d+(?:\.\d+)?(?![\w.]*\d)")
# Phrases of a task that say the same.
PHRASES = (
    ("What is the value of", "Find the value of", "Determine the value of"),
    ("What is", "Find", "Determine"),
    ("Compute", "Calculate", "Work out"),
    ("How many", "What number of"),
    ("Simplify", "Write in simplest form"),
    ("Express your answer", "Give your answer"),
    ("Suppose that", "Assume that"),
    ("in total", "altogether"),
    ("such that", "so that"),
    ("positive integers", "positive whole numbers"),
    ("buys", "purchases"),
    ("each day", "every day"),
    ("twice as many", "two times as many"),
    ("half as many", "one half as many"),
)
GROUP_OF = {phrase: group for group in PHRASES for phrase in group}
PHRASE = re.compile("|".join(rf"\b{phrase}\b" for phrase in sorted(GROUP_OF, key=len, reverse=True)))
NAMES = ("Alma", "Boris", "Chidi", "Daria", "Emil", "Farah", "Goran", "Hana")
NAME = re.compile(
    r"\b(?:James|John|Mary|Tom|Janet|Maria|Jack|Sarah|Mark|Josh|Anna|Alice|Bob|Carlos|Emily|Mike|Kate|David|Lisa|Sam)\b"
)


def generators_of(sources: Sequence[Source]) -> dict[str, Generator]:
    """The generators of a curation's generated sources, by the name of the source."""
    return {
        source.name: make_generator(source.generator, source.options.model_dump())
        for source in sources
        if isinstance(source, GeneratedSource)
    }


def crowded_levels(
    problems: Sequence[Problem], generators: Mapping[str, Generator], known_questions: Collection[str]
) -> set[tuple[str, int]]:
    """The levels of generated sources at which more than MOST_KNOWN of the draws are known questions.

    There a twin that is not known is a rarer question than a problem that was drawn first, so that a model which met
    neither would score the problem higher.
    """
    crowded = set()
    for source, level in sorted({(p.source, p.level) for p in problems if p.source in generators and p.level}):
        if level in generators[source].levels:
            rng = random.Random(derive_seed(0, "crowded", source, level))
            drafts = [draft for _ in range(DRAWS) if (draft := generators[source].draw(rng, level)) is not None]
            if sum(draft.question in known_questions for draft in drafts) > MOST_KNOWN * len(drafts):
                crowded.add((source, level))
    return crowded


def twins(
    problem: Problem,
    kind: TwinKind,
    count: int,
    *,
    generators: Mapping[str, Generator],
    known_questions: Collection[str] = (),
    seed: int = 0,
) -> list[Problem]:
    """Up to `count` twins of the problem, none of whose questions is known; none if there is no such twin.

    A renumbered twin has no answer: `answers` is empty.
    """
    rng = random.Random(derive_seed(seed, "twins", kind, problem.id, problem.question))
    made: dict[str, Problem] = {}
    for draft in _drafts(problem, kind, generators, rng):
        if draft.question not in known_questions and draft.question != problem.question:
            made.setdefault(draft.question, draft.with_(id=f"{problem.id}/twin/{len(made)}"))
        if len(made) == count:
            break
    return list(made.values())


def _drafts(
    problem: Problem, kind: TwinKind, generators: Mapping[str, Generator], rng: random.Random
) -> Iterator[Problem]:
    generator = generators.get(problem.source)
    for _ in range(TRIES):
        if kind == "generated":
            if generator is None or problem.level not in generator.levels:
                return
            draft = generator.draw(rng, problem.level)
            if draft is not None:
                yield problem.with_(
                    question=draft.question,
                    answers=(draft.answer,),
                    solution=draft.solution,
                    subject=draft.subject,
                    control=draft.control,
                    extra=draft.extra,
                )
        elif kind == "renumbered":
            yield problem.with_(question=renumber(problem.question, rng), answers=(), solution=None)
        else:
            yield problem.with_(question=reword(problem.question, rng), solution=None)


def renumber(question: str, rng: random.Random) -> str:
    """The question with each number replaced by another with as many digits; equal numbers stay equal.

    >>> renumber("12 and 12 plus 3.5", random.Random(0))
    '76 and 76 plus 9.7'
    """
    new: dict[str, str] = {}

    def exchange(match: re.Match[str]) -> str:
        return new.setdefault(match[0], "".join(_digit(match[0], place, rng) for place in range(len(match[0]))))

    return NUMBER.sub(exchange, question)


def _digit(number: str, place: int, rng: random.Random) -> str:
    """A digit for this place of the number: its first is not 0 unless it was."""
    if not number[place].isdigit():
        return number[place]
    leading = place == 0 and number[0] != "0"
    return str(rng.randint(1, 9) if leading else rng.randint(0, 9))


def reword(question: str, rng: random.Random) -> str:
    """The question with phrases of the task and names of people exchanged, as far as it has any that are known.

    >>> reword("What is 7+5?", random.Random(1))
    'Find 7+5?'
    """
    text = PHRASE.sub(lambda match: rng.choice([other for other in GROUP_OF[match[0]] if other != match[0]]), question)
    people = list(dict.fromkeys(NAME.findall(text)))
    names = [name for name in NAMES if name not in text]
    others = dict(zip(people, rng.sample(names, min(len(people), len(names))), strict=False))
    return NAME.sub(lambda match: others.get(match[0], match[0]), text)
