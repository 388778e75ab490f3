"""Problems told in words: a structure with its numbers, people and perhaps a distractor, and stories of events."""

import random
from itertools import pairwise

from pydantic import model_validator

from mathrl.generators.draft import Draft
from mathrl.generators.stories.events import Sentence, held_out, people, sentences, things
from mathrl.generators.stories.structure import Structure, Unfit, Work, by_steps, structures
from mathrl.params.generators import StoryOptions, WordProblemOptions
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
        question = structure.tell(numbers, who, rng, distracted)
        extra = {"structure": structure.name, "language": language, "distractor": distracted}
        return Draft(question, str(answer), "\n".join(work.lines), structure.kind, extra=extra)


class Story(StoryOptions):
    """Level: the number of steps. All numbers are whole and positive, and at most `largest_result`.

    A template is the sentences in order, without names, things and numbers. It is held out if two of its neighbours are
    a held-out pair (`stories.events.held_out`), so that no training problem has these two sentences in this order.
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
