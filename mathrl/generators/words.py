"""Problems told in words: a structure with its numbers, people and perhaps a distractor, and stories of events.

The sentences of an event story change the number of things; people have names and pronouns by language.
"""

import random
from collections.abc import Mapping
from functools import cache, cached_property
from itertools import pairwise

from pydantic import Field, model_validator

from mathrl.core.hashing import derive_seed
from mathrl.generators.draft import Draft
from mathrl.generators.structure import STORIES, Formula, Structure, Unfit, Work, by_steps, structures
from mathrl.params.generators import StoryOptions, WordProblemOptions
from mathrl.params.load import read_yaml, validate_section
from mathrl.params.messages import did_you_mean
from mathrl.params.section import Section

HELD_OUT = 4  # of so many pairs of neighbouring sentences one is held out


class Sentence(Section):
    """A sentence with its numbers still open.

    Example: Sentence(name="packets", text="{They} adds {a} packets of {b} {thing}.", work="n + a * b",
                      numbers={"a": (2, 9), "b": (2, 9)})
    """

    name: str
    text: str = Field(
        description="What is told or asked; {name}, {friend}, {they} are people, {thing} what is counted."
    )
    work: str = Field(description="Formula of the new number of things from the old one, n; its operations are steps.")
    numbers: Mapping[str, tuple[int, int]] = Field(description="Smallest and largest value of each number.")

    @cached_property
    def steps(self) -> int:
        return sum(self.work.count(sign) for sign in "+-*/")

    @cached_property
    def _formula(self) -> Formula:
        return Formula(self.work)

    def draw(self, rng: random.Random, n: int, work: Work) -> tuple[dict[str, int], int]:
        """Numbers for the sentence, and the new number of things, which are `n` before it.

        Raises:
            Unfit: a step of the work is not whole, or not positive.
        """
        numbers = {name: rng.randint(low, high) for name, (low, high) in self.numbers.items()}
        return numbers, self._formula.value({"n": n, **numbers}, work.step)


@cache
def sentences(part: str) -> tuple[Sentence, ...]:
    """The sentences of a part of the story: start, event or question.

    Raises:
        UserError: an entry of the file is no sentence.
    """
    rows = read_yaml(STORIES / "events.yaml")[part]
    return tuple(validate_section(Sentence, {"name": name, **row}, f"{part} {name}") for name, row in rows.items())


@cache
def things() -> tuple[str, ...]:
    """What stories count, in the plural."""
    return tuple(read_yaml(STORIES / "events.yaml")["things"].split())


@cache
def held_out(first: str, second: str) -> bool:
    """Whether stories in which the sentence `second` follows `first` are held out."""
    return derive_seed(0, "story", first, second) % HELD_OUT == 0


_PRONOUNS: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "en": (
        {"they": "she", "They": "She", "them": "her", "their": "her", "Their": "Her"},
        {"they": "he", "They": "He", "them": "him", "their": "his", "Their": "His"},
    ),
    "de": ({"they": "sie", "They": "Sie"}, {"they": "er", "They": "Er"}),
    "fr": ({"they": "elle", "They": "Elle"}, {"they": "il", "They": "Il"}),
    "es": ({"they": "ella", "They": "Ella"}, {"they": "él", "They": "Él"}),
}
_NAMES: Mapping[str, tuple[str, str]] = {
    "en": (
        "Amira Beatriz Chen Dana Elif Fatou Grace Hana Ines Julia Keiko Lena Maria Noor Olga Priya",
        "Ahmed Boris Carlos David Emeka Felix Goran Hugo Ivan Jamal Kenji Luca Mateo Nils Omar Pavel",
    ),
    "de": (
        "Anna Clara Ebru Greta Hanna Jule Lena Mia Nora Sophie",
        "Anton Ben Emil Finn Jonas Karim Lukas Max Paul Tim",
    ),
    "fr": (
        "Claire Camille Fatou Louise Jeanne Léa Manon Nadia Rose Zoé",
        "Thomas Bruno Gaël Victor Jules Karim Léo Marc Noé Paul",
    ),
    "es": (
        "Alba Carmen Elena Irene Lola Lucía Marta Nuria Pilar Sofía",
        "Andrés Bruno Diego Hugo Javier Leo Mario Pablo Raúl Tomás",
    ),
}


def people(rng: random.Random, language: str) -> dict[str, str]:
    """The names of three different people, and the pronouns of the first."""
    side = rng.randrange(2)
    name = rng.choice(_NAMES[language][side].split())
    others = [other for names in _NAMES[language] for other in names.split() if other != name]
    friend, other = rng.sample(others, 2)
    return {"name": name, "friend": friend, "other": other, **_PRONOUNS[language][side]}


class WordProblem(WordProblemOptions):
    """Level: the number of steps. All quantities are whole and positive."""

    @property
    def levels(self) -> tuple[int, ...]:
        return self.steps

    @model_validator(mode="after")
    def _structures_exist(self) -> "WordProblem":
        names = sorted({structure.name for structure in structures()})
        for name in (*(self.structures or ()), *self.without_structures):
            if name not in names:
                raise ValueError(f"no structure {name!r}{did_you_mean(name, names)}; known: {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _there_are_some(self) -> "WordProblem":
        for language in self.languages:
            for level in self.steps:
                if not self._choices(language, level):
                    raise ValueError(
                        f"there is no structure of {level} steps in language {language} of these kinds and names; "
                        "allow more kinds or structures, or leave out the level or the language"
                    )
        return self

    def _choices(self, language: str, level: int) -> list[Structure]:
        return [
            structure
            for structure in by_steps().get(level, ())
            if structure.language == language
            and (self.kinds is None or structure.kind in self.kinds)
            and (self.structures is None or structure.name in self.structures)
            and structure.name not in self.without_structures
        ]

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        language = rng.choice(self.languages)
        structure = rng.choice(self._choices(language, level))
        numbers, work, answer = structure.draw(rng)
        who, distracted = people(rng, language), rng.random() < self.distractors
        question = structure.tell(numbers, who, rng, distracted)
        extra = {"structure": structure.name, "language": language, "distractor": distracted}
        return Draft(question, str(answer), "\n".join(work.lines), structure.kind, extra=extra)


class Story(StoryOptions):
    """Level: the number of steps. All numbers are whole and positive, and at most `largest_result`.

    A template is the sentences in order, without names, things and numbers. It is held out if two of its neighbours are
    a held-out pair (`held_out`), so that no training problem has these two sentences in this order.
    """

    @property
    def levels(self) -> tuple[int, ...]:
        return self.steps

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        sentences = self._sentences(rng, level)
        names = [sentence.name for sentence in sentences]
        new = sum(held_out(first, second) for first, second in pairwise(names))
        if self.templates != "all" and (self.templates == "held_out") != (new > 0):
            return None
        words = {**people(rng, "en"), "thing": rng.choice(things())}
        n, work, parts = 0, Work(), []
        try:
            for sentence in sentences:
                numbers, n = sentence.draw(rng, n, work)
                parts.append(sentence.text.format(**numbers, **words))
        except Unfit:
            return None
        if max(work.values) > self.largest_result:
            return None
        extra = {"template": "/".join(names), "new_pairs": new}
        solution = ";".join(line.replace(" ", "") for line in work.lines)  # as a chain's, so that chains are its drill
        return Draft(" ".join(parts), str(n), solution, names[-1], extra=extra)

    @staticmethod
    def _sentences(rng: random.Random, level: int) -> list[Sentence]:
        """A start, events and a question that take `level` steps together."""
        start = rng.choice([sentence for sentence in sentences("start") if sentence.steps <= level])
        question = rng.choice([s for s in sentences("question") if start.steps + s.steps <= level])
        events, left = [], level - start.steps - question.steps
        while left:
            events.append(rng.choice([event for event in sentences("event") if event.steps <= left]))
            left -= events[-1].steps
        return [start, *events, question]
