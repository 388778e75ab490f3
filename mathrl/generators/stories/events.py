"""Sentences of event stories, which change the number of things, and the people in them, by language."""

import random
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path

from pydantic import Field

from mathrl.core.hashing import derive_seed
from mathrl.generators.stories.formula import Formula
from mathrl.generators.stories.structure import Work
from mathrl.params.load import read_yaml, validate_section
from mathrl.params.section import Section

FILE = Path(__file__).with_name("events.yaml")
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
    rows = read_yaml(FILE)[part]
    return tuple(validate_section(Sentence, {"name": name, **row}, f"{part} {name}") for name, row in rows.items())


@cache
def things() -> tuple[str, ...]:
    """What stories count, in the plural."""
    return tuple(read_yaml(FILE)["things"].split())


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
