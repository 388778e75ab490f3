"""Sections rl.engine and sft.engine: which engine trains, and for verl where it runs and what of its own is set."""

from typing import Annotated, Literal

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
