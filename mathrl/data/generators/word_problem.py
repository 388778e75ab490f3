"""Word problems: a structure (what is told and asked), its numbers, people, and perhaps a distractor."""

import random

from pydantic import model_validator

from mathrl.data.generators.draft import Draft
from mathrl.data.stories.people import people
from mathrl.data.stories.read import by_steps, structures
from mathrl.data.stories.structure import Structure
from mathrl.params.generators import WordProblemOptions
from mathrl.params.messages import did_you_mean


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
        question = structure.told(numbers, who, rng, distracted)
        extra = {"structure": structure.name, "language": language, "distractor": distracted}
        return Draft(question, str(answer), "\n".join(work.lines), structure.kind, extra=extra)
