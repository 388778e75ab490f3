"""Section of verl, part of the section rl: where verl runs, and what of its own configuration is set."""

from typing import Annotated

from pydantic import Field

from mathrl.params.section import Section

Override = Annotated[str, Field(pattern=r"^\+{0,2}[A-Za-z_][\w.]*=.*$")]


class Verl(Section):
    """verl's machines and settings of its own; only for engine verl."""

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
