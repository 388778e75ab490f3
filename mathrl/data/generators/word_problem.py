"""Word problems: a structure (what is told and asked), its numbers, people, and perhaps a distractor."""

import random

from pydantic import model_validator

from mathrl.data.generators.draft import Draft
from mathrl.data.stories.people import people
from mathrl.data.stories.read import by_steps
from mathrl.data.stories.structure import Structure
from mathrl.params.generators import WordProblemOptions


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
