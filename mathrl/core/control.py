"""What mathrl notes about a problem, apart from the columns of the user's row."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from mathrl.core.errors import UserError
from mathrl.core.files import from_fields


@dataclass(frozen=True, slots=True)
class Control:
    """How a problem is prompted, routed and demonstrated. A user's columns never end up here by their names alone.

    Example:
        Control(messages=({"role": "user", "content": "What is 2+2?"},), data_source="openai/gsm8k")

    `messages` is the prompt as a chat list, without an assistant turn at its end, and `cut_turns` the number of such
    turns that were cut. `templated`: the question is the prompt as it is. `task` and `data_source` choose a route of
    prompt and reward. `response` is a policy's response to imitate, `demonstrated_answer` the answer that a
    demonstration shows instead of the truth, `begun` the tokens of a response to continue.
    """

    messages: tuple[Mapping[str, str], ...] = ()
    templated: bool = False
    task: str | None = None
    data_source: str | None = None
    response: str | None = None
    demonstrated_answer: str | None = None
    begun: tuple[int, ...] = ()
    cut_turns: int = 0

    @property
    def routes(self) -> tuple[str, ...]:
        """The names that may choose a route, the first first."""
        return tuple(name for name in (self.task, self.data_source) if name is not None)

    def to_row(self) -> dict[str, Any]:
        """The JSON object on disk: fields that are set."""
        if self is NO_CONTROL:
            return {}
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in row.items()
            if value != self.__dataclass_fields__[name].default
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str = "row") -> "Control":
        """Read what `to_row` wrote.

        Raises:
            UserError: an unknown field; `where` (file and line) stands in the message.
        """
        if not row:
            return NO_CONTROL
        unknown = [name for name in row if name not in cls.__dataclass_fields__]
        if unknown:
            raise UserError(f"{where}: field control has unknown fields: {', '.join(unknown)}; run curate again")
        return from_fields(cls, row)


NO_CONTROL = Control()
