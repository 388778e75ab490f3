"""Word problems: a person, a quantity with its unit, and as many events as the level says.

Scenes (things, money, distance, water, flour, minutes) have their own sentences for the start, for each kind
of event and for the question, so the phrasings multiply: start × events × question.
"""

import random

from mathrl.data.generators.draft import Draft
from mathrl.data.generators.scenes import FRIENDS, NAMES, SCENES, THINGS, Scene
from mathrl.params.generators import WordProblemOptions


class WordProblem(WordProblemOptions):
    """Level: the number of events. All quantities are whole and positive."""

    @property
    def levels(self) -> tuple[int, ...]:
        return self.events

    def draw(self, rng: random.Random, level: int) -> Draft | None:
        scene = rng.choice(SCENES)
        name, pronoun = rng.choice(NAMES)
        words = {
            "name": name,
            "they": pronoun,
            "They": pronoun.capitalize(),
            "friend": rng.choice(FRIENDS),
            "thing": rng.choice(THINGS),
        }
        value = rng.randint(2, self.largest_number)
        sentences = [rng.choice(scene.starts).format(n=value, **words)]
        lines, last_kind = [], ""
        for _ in range(level):
            event = self._event(rng, scene, value, last_kind)
            if event is None:
                return None
            last_kind, text, numbers, step, value = event
            sentences.append(text.format(**numbers, **words))
            lines.append(f"{step} = {value}")
        sentences.append(rng.choice(scene.questions).format(**words))
        return Draft(" ".join(sentences), str(value), "\n".join(lines), scene.name)

    def _event(
        self, rng: random.Random, scene: Scene, value: int, last_kind: str
    ) -> tuple[str, str, dict[str, int], str, int] | None:
        """A kind of event that fits the quantity: its sentence, numbers, step and the new quantity."""
        kinds = [kind for kind in scene.events if kind != last_kind]
        for kind in rng.sample(kinds, len(kinds)):
            n, m = rng.randint(2, self.largest_number), rng.randint(2, min(12, self.largest_number))
            change = {
                "more": (f"{value} + {n}", value + n),
                "less": (f"{value} - {n}", value - n),
                "times": (f"{value} * {m}", value * m),
                "share": (f"{value} / {m}", value // m if value % m == 0 else 0),
                "groups": (f"{value} + {n} * {m}", value + n * m),
                "groups_less": (f"{value} - {n} * {m}", value - n * m),
            }
            step, new_value = change[kind]
            if 0 < new_value <= self.largest_result:
                return kind, rng.choice(scene.events[kind]), {"n": n, "m": m}, step, new_value
        return None
