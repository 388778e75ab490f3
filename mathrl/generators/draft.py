"""What a generator is: levels, and one problem drawn at a level."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mathrl.core.types import NO_CONTROL, Control


@dataclass(frozen=True, slots=True)
class Draft:
    """A generated problem before it has an id and a split.

    Example:
        Draft(question="7+5-3*4=", answer="36", solution="7+5=12;12-3=9;9*4=36")
    """

    question: str
    answer: str
    solution: str | None
    subject: str | None = None
    control: Control = NO_CONTROL
    extra: Mapping[str, Any] = field(default_factory=dict)


class Generator(Protocol):
    """Made from its options (a pydantic section, so that a wrong option is named).

    `levels` are drawn evenly. `draw` may return None for a draw to throw away; equal (rng, level) give
    equal drafts on every machine.
    """

    @property
    def levels(self) -> tuple[int, ...]: ...

    def draw(self, rng: random.Random, level: int) -> Draft | None: ...
