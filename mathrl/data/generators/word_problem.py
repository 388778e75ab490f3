"""Word problems: a structure (what is told and asked), its numbers, people, and perhaps a distractor."""

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from pydantic import model_validator

from mathrl.data.generators.draft import Draft
from mathrl.data.stories.comparisons import COMPARISONS
from mathrl.data.stories.people import people
from mathrl.data.stories.rates import RATES
from mathrl.data.stories.structure import Structure
from mathrl.data.stories.trade import TRADE
from mathrl.data.stories.translations import TRANSLATIONS
from mathrl.data.stories.units import UNITS
from mathrl.params.generators import WordProblemOptions

ENGLISH = (*RATES, *UNITS, *TRADE, *COMPARISONS)
STRUCTURES: tuple[Structure, ...] = (
    *ENGLISH,
    *(
        replace(structure, language=language, text=told[structure.name][0], distractor=told[structure.name][1])
        for language, told in TRANSLATIONS.items()
        for structure in ENGLISH
        if structure.name in told
    ),
)


@cache
def by_steps() -> Mapping[int, tuple[Structure, ...]]:
    """The structures of each number of steps."""
    steps = [structure.steps() for structure in STRUCTURES]
    return {
        count: tuple(structure for structure, own in zip(STRUCTURES, steps, strict=True) if own == count)
        for count in sorted(set(steps))
    }


class WordProblem(WordProblemOptions):
    """Level: the number of steps. All quantities are whole and positive."""

    @property
    def levels(self) -> tuple[int, ...]:
        return self.steps

    @model_validator(mode="after")
    def _there_are_some(self) -> "WordProblem":
        for language in self.languages:
            for level in self.steps:
                if not self._choices(language, level):
                    raise ValueError(
                        f"there is no structure of {level} steps in language {language} of these kinds; allow more "
                        "kinds, or leave out the level or the language"
                    )
        return self

    def _choices(self, language: str, level: int) -> list[Structure]:
        return [
            structure
            for structure in by_steps().get(level, ())
            if structure.language == language and (self.kinds is None or structure.kind in self.kinds)
        ]

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        language = rng.choice(self.languages)
        structure = rng.choice(self._choices(language, level))
        numbers, work, answer = structure.draw(rng)
        who, distracted = people(rng, language), rng.random() < self.distractors
        question = structure.told(numbers, who, rng, distracted)
        extra = {"structure": structure.name, "language": language, "distractor": distracted}
        return Draft(question, str(answer), "\n".join(work.lines), structure.kind, extra=extra)
