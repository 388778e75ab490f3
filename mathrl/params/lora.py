"""Section of low-rank adapters, part of the sections that train."""

from pydantic import Field

from mathrl.params.section import Section


class Adapters(Section):
    """Train low-rank adapters (arXiv:2106.09685) beside frozen weights; AdamW trains them."""

    r: int = Field(16, ge=1, description="Rank of the adapters.")
    alpha: float = Field(32.0, gt=0, description="Scale of the adapters: their output is multiplied by alpha / r.")
    targets: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Linear layers to adapt, by the end of their names, such as q_proj; null: all but the output head.",
    )
    keep_adapter: bool = Field(
        False, description="Export the adapter too, in adapter/ of the model folder, in peft's format."
    )

    @property
    def input_dropout(self) -> float:
        """Dropout on an adapter's input during training; 0 in RL: the update trains the policy that sampled."""
        return 0.0


class Lora(Adapters):
    """Train low-rank adapters (arXiv:2106.09685) beside frozen weights; AdamW trains them."""

    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout on an adapter's input during training.")

    @property
    def input_dropout(self) -> float:
        """Dropout on an adapter's input during training."""
        return self.dropout
