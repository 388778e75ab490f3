"""Optimizers with their learning rates: a union in every section that trains.

Section of low-rank adapters, part of the sections that train.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from mathrl.params.section import Section

Schedule = Literal["constant", "linear", "flat_linear", "cosine"]
# Muon's update of a matrix has an RMS of one over the root of its longer side, AdamW's about 0.2: rates differ by 6 at
# a width of 896 and by 14 in its MLP (Liu et al. 2025, Muon is Scalable, arXiv:2502.16982, equation 4).
MUON_TIMES = 10.0


class _Optimizer(Section):
    """What the optimizers share."""

    type: str
    lr: float = Field(ge=0, le=1, description="Peak learning rate.")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW beta1: decay of the first moment.")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW beta2: decay of the second moment.")
    eps: float = Field(1e-8, gt=0, description="AdamW epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay (AdamW, Muon).")
    clip_norm: float | None = Field(1.0, gt=0, description="Maximum gradient norm; null: no clipping.")
    warmup_steps: int = Field(10, ge=0, description="Optimizer steps of linear warm-up.")
    schedule: Schedule = Field(
        "linear",
        description="Decay of the learning rate after warm-up; flat_linear: constant for the first half, then linear "
        "to zero.",
    )

    @property
    def adamw_lr(self) -> float:
        """Peak learning rate of the weights that AdamW trains."""
        return self.lr

    def beside(self, tag: str) -> dict[str, Any]:
        """What an optimizer of the other type takes from a section's default: AdamW's rate, and all that is no rate."""
        shared = {name: value for name, value in self.written_fields().items() if name in _Optimizer.model_fields}
        return shared | {"type": tag} | other_rates(self.type, tag, dict(self))


class AdamW(_Optimizer):
    """AdamW on every weight (arXiv:1711.05101)."""

    type: Literal["adamw"] = "adamw"
    lr: float = Field(ge=0, le=1, description="Peak learning rate of every weight.")


class AdamW8Bit(_Optimizer):
    """AdamW with both moments in 8 bits (arXiv:2110.02861) by bitsandbytes: 2 bytes of states per weight, not 8.

    A tensor of fewer than 4,096 weights keeps float32 moments.
    """

    type: Literal["adamw_8bit"] = "adamw_8bit"
    lr: float = Field(ge=0, le=1, description="Peak learning rate of every weight.")


class Muon(_Optimizer):
    """Muon on the hidden matrices (arXiv:2502.16982), AdamW on embeddings, norms, biases and adapters."""

    type: Literal["muon"] = "muon"
    lr: float = Field(ge=0, le=1, description="Peak learning rate of the hidden matrices.")
    adamw_scale: float = Field(
        1 / MUON_TIMES,
        ge=0,
        description="AdamW's learning rate (embeddings, norms, biases, adapters) as a multiple of lr.",
    )

    @property
    def adamw_lr(self) -> float:
        """Peak learning rate of the weights that AdamW trains."""
        return self.lr * self.adamw_scale


Optimizer = Annotated[AdamW | Muon | AdamW8Bit, Field(discriminator="type")]


def other_rates(before: str, after: str, written: Mapping[str, Any]) -> dict[str, float]:
    """The rates of another type of optimizer with which AdamW's own rate stays; none where no lr is written.

    >>> other_rates("adamw", "muon", {"lr": 1e-6})
    {'lr': 1e-05, 'adamw_scale': 0.1}
    >>> other_rates("muon", "adamw", {"lr": 0.01, "adamw_scale": 0.05})
    {'lr': 0.0005}
    """
    lr = written.get("lr")
    if (before == "muon") == (after == "muon") or isinstance(lr, bool) or not isinstance(lr, int | float):
        return {}
    if after == "muon":
        return {"lr": float(f"{lr * MUON_TIMES:.12g}"), "adamw_scale": 1 / MUON_TIMES}
    return {"lr": float(f"{lr * written.get('adamw_scale', 1 / MUON_TIMES):.12g}")}


class Adapters(Section):
    """Train low-rank adapters (arXiv:2106.09685) beside frozen weights; AdamW trains them."""

    r: int = Field(16, ge=1, description="Rank of the adapters.")
    alpha: float = Field(32.0, gt=0, description="Scale of the adapters: their output is multiplied by alpha / r.")
    targets: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="Linear layers to adapt, by the end of their names, such as q_proj; null: all but the output head.",
    )
    frozen: Literal["whole", "nf4"] = Field(
        "whole",
        description="Frozen weights of the linear layers: whole, in the model's precision, or nf4, in 4 bits (QLoRA, "
        "arXiv:2305.14314; needs bitsandbytes and training.backend torch).",
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
