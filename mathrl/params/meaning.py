"""What another training engine makes of one parameter."""

from dataclasses import dataclass
from typing import Any

Values = tuple[Any, ...]
MATHRL = "mathrl does it"
UNUSED = "no effect"


@dataclass(frozen=True)
class Meaning:
    """What an engine makes of a parameter: `becomes`, its own argument or who does it instead.

    `only` are the values that it can do, the first of them the one to write; empty: all. `instead` says why, and what
    follows from writing it.

    Example: Meaning("rl.ema", "refused", (None,), "it keeps no moving average of the weights")
    """

    setting: str
    becomes: str
    only: Values = ()
    instead: str = ""

    def refusal(self, value: Any) -> str:
        """What to write instead of `value` and why; empty where the engine can do it."""
        if not self.only or value in self.only:
            return ""
        return f"{self.setting}={yaml_value(self.only[0])} ({self.instead})"


def yaml_value(value: Any) -> str:
    """The value as an override has it.

    >>> yaml_value(None), yaml_value(False), yaml_value(1e-4), yaml_value("adamw")
    ('null', 'false', '0.0001', 'adamw')
    """
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else f"{value}"
