"""Section training: which engine holds weights and optimizer while training, and what happens on faults."""

from typing import Literal

from pydantic import Field, model_validator

from mathrl.params.section import Section


class DeepSpeed(Section):
    """ZeRO (arXiv:1910.02054): optimizer states, gradients and weights divided among the processes."""

    stage: Literal[1, 2, 3] = Field(2, description="Divided: 1: optimizer states; 2: and gradients; 3: and weights.")
    offload_optimizer: bool = Field(False, description="Optimizer states and its step on the CPU.")
    offload_parameters: bool = Field(False, description="Weights wait in the CPU's memory; needs stage 3.")
    hostfile: str | None = Field(
        None,
        min_length=1,
        description="DeepSpeed's list of machines, lines such as `node1 slots=8`: the stage starts itself on "
        "all of them. They share the checkout and its state folder.",
    )

    @model_validator(mode="after")
    def _offload(self) -> "DeepSpeed":
        if self.offload_parameters and self.stage != 3:
            raise ValueError("offload_parameters needs stage 3: only then are weights divided")
        return self


class Training(Section):
    """Of every stage that trains a model."""

    backend: Literal["torch", "deepspeed"] = Field(
        "torch", description="torch: every process holds all weights; deepspeed: divided by ZeRO."
    )
    deepspeed: DeepSpeed = DeepSpeed()
    most_bad_updates: int = Field(
        10, ge=0, description="Updates whose loss or gradient is no number are skipped; after so many: an end."
    )
    checkpoint_minutes: float | None = Field(
        10.0,
        gt=0,
        description="A resume point at the end of a step also where the last is so old; null: every "
        "checkpoint_every steps alone.",
    )
    on_out_of_memory: Literal["stop", "halve"] = Field(
        "stop", description="halve: go on with micro-batches of half the tokens, to the same gradient."
    )

    @model_validator(mode="after")
    def _fit(self) -> "Training":
        if self.deepspeed.hostfile and self.backend != "deepspeed":
            raise ValueError("deepspeed.hostfile needs backend deepspeed")
        if self.on_out_of_memory == "halve" and self.backend == "deepspeed":
            raise ValueError(
                "on_out_of_memory halve needs backend torch: within DeepSpeed's backward pass the processes "
                "exchange gradients, so none can begin anew; lower tokens_per_microbatch of the stage instead"
            )
        return self
