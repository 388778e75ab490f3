"""Section rl.imitation: what an update learns beside its samples' advantages, from right or from expert responses."""

from typing import Annotated, Any, Literal

from pydantic import Field

from mathrl.params.advantage import Ramp
from mathrl.params.section import Section

Share = Annotated[float, Field(ge=0, le=1)]


class OwnRight(Section):
    """The negative log-likelihood of the samples that are right, a term of the loss (VAPO, arXiv:2504.05118)."""

    type: Literal["own"] = "own"
    coef: float = Field(0.1, ge=0, description="Coefficient of the term, a mean over the tokens of right responses.")


class SftTerm(Section):
    """The SFT loss on worked solutions of the step's problems, against the policy loss (CHORD, arXiv:2508.11408)."""

    type: Literal["sft"] = "sft"
    coef: Share | Ramp = Field(
        0.1,
        description="Share mu of the SFT loss, the policy loss has 1 - mu: a number, or {start: 0.9, end: 0.05, steps: "
        "200}.",
    )
    weigh: Literal["alike", "phi"] = Field(
        "alike", description="Tokens of the SFT loss: alike, or phi: weighed by p (1 - p), most where p is near 1/2."
    )

    def at_step(self, step: int) -> "SftTerm":
        """The section at a step, counted from 0: a ramp has its value."""
        return self if not isinstance(self.coef, Ramp) else self.model_copy(update={"coef": self.coef.at(step)})


class Luffy(Section):
    """LUFFY (arXiv:2504.14945): the worked solution as one more response of its group, shaped by p / (p + gamma)."""

    type: Literal["luffy"] = "luffy"
    shaping: float = Field(0.1, gt=0, description="Gamma: tokens of a probability far below it count less and less.")


class Solutions(Section):
    """Worked solutions of the step's problems as further responses for a divergence from a teacher (GKD's fixed data).

    One per group: the share of the policy's own responses, GKD's lambda, follows from rl.group_size.
    """

    type: Literal["solutions"] = "solutions"


Imitation = Annotated[OwnRight | SftTerm | Luffy | Solutions, Field(discriminator="type")]


def coef_of(imitation: Any) -> float:
    """The coefficient of the likelihood term at a step; 0 where there is none."""
    if not isinstance(imitation, OwnRight | SftTerm):
        return 0.0
    assert not isinstance(imitation.coef, Ramp), "the loop resolves ramps per step"
    return imitation.coef
