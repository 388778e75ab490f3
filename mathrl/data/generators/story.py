"""Stories of events: a start, what happens next, and a question, each told in one of several ways."""

import random
from itertools import pairwise

from mathrl.data.generators.draft import Draft
from mathrl.data.stories.events import Sentence, held_out, sentences, things
from mathrl.data.stories.people import people
from mathrl.data.stories.structure import Unfit, Work
from mathrl.params.generators import StoryOptions


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
