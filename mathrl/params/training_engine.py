"""Sections rl.engine and sft.engine: which engine trains, and for verl where it runs and what of its own is set."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from mathrl.params.section import Section

Override = Annotated[str, Field(pattern=r"^\+{0,2}[A-Za-z_][\w.]*=.*$")]


class MathRl(Section):
    """mathrl's own loop."""

    type: Literal["mathrl"] = "mathrl"


class Trl(Section):
    """TRL's trainer."""

    type: Literal["trl"] = "trl"


class Verl(Section):
    """verl's trainer, on its machines and with settings of its own."""

    type: Literal["verl"] = "verl"
    nodes: int = Field(1, ge=1, le=1024, description="Machines that verl trains on, each with run.processes GPUs.")
    ray_address: str | None = Field(
        None,
        min_length=1,
        description="Ray cluster to train on: auto (that of this machine) or host:port; null: verl starts Ray here.",
    )
    overrides: tuple[Override, ...] = Field(
        (),
        description="Settings of verl that mathrl does not set, as Hydra overrides: "
        "[actor_rollout_ref.actor.fsdp_config.param_offload=true].",
    )


RlEngine = Annotated[MathRl | Trl | Verl, Field(discriminator="type")]
SftEngine = Annotated[MathRl | Trl, Field(discriminator="type")]


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
