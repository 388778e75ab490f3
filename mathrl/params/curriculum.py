"""Section rl.curriculum: which problems a training step takes, and how many responses each gets."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mathrl.params.section import DottedOptions, Section


class PoolWeights(Section):
    """Shares of a step's prompts, relative to their sum; an empty pool's share goes to the others."""

    hard: float = Field(1.0, ge=0, description="Share of the pool of problems that are hardly ever solved.")
    medium: float = Field(8.0, ge=0, description="Share of the pool between hard and easy.")
    easy: float = Field(1.0, ge=0, description="Share of the pool of problems that are almost always solved.")

    @model_validator(mode="after")
    def _some(self) -> "PoolWeights":
        if not self.hard + self.medium + self.easy:
            raise ValueError("all weights are 0; give at least one pool a weight above 0, such as medium: 8")
        return self


class Retire(Section):
    """When a problem is retired, and after how many steps it is brought back."""

    solved_after: int | None = Field(
        2, ge=1, description="Groups in a row without an incorrect response that retire a problem; null: never."
    )
    failed_after: int | None = Field(
        3, ge=1, description="Groups in a row without a correct response that retire a problem; null: never."
    )
    steps: int = Field(10, ge=1, description="Sampling rounds until a retired problem is brought back.")
    growth: float = Field(
        2.0, ge=1, description="Factor on that number when the problem is brought back and is still all right or wrong."
    )


class Pools(Section):
    """Pools by running pass rate: hard, medium and easy problems, drawn by weight."""

    hard_below: float = Field(0.1, ge=0, le=1, description="Running pass rate below which a problem is hard.")
    easy_above: float = Field(0.9, ge=0, le=1, description="Running pass rate above which a problem is easy.")
    weights: PoolWeights = PoolWeights()
    retire: Retire | None = Field(Retire(), description="Retire problems that teach nothing; null: retire none.")
    predict: bool = Field(
        True,
        description="Predict the pass rates of problems not yet sampled from those sampled (logistic regression on "
        "source, level, measured pass rate and length of the question); false: the measured pass rate, else 1/2.",
    )
    prior: float = Field(
        4.0, gt=0, description="Weight of the predicted pass rate in the running one, as a number of responses."
    )

    @model_validator(mode="after")
    def _edges(self) -> "Pools":
        if self.hard_below >= self.easy_above:
            raise ValueError("pools.hard_below must be below pools.easy_above")
        return self


class AdaptiveSamples(Section):
    """Responses per prompt by expected use: the chance of a group with correct and incorrect responses."""

    least: int = Field(
        4, ge=2, description="Responses that every prompt gets; further ones come in parts of this size."
    )
    most: int = Field(32, ge=2, description="Maximum number of responses per prompt.")
    min_gain: float = Field(
        0.005,
        ge=0,
        lt=1,
        description="Minimum rise, per response, of the chance that the group has correct and incorrect responses; "
        "below it the rest of the step's budget (prompts x group_size) is saved.",
    )

    @model_validator(mode="after")
    def _multiple(self) -> "AdaptiveSamples":
        if self.most % self.least:
            raise ValueError(f"adaptive.most ({self.most}) must be a multiple of adaptive.least ({self.least})")
        return self


class Shuffled(Section):
    """Reshuffled every pass."""

    type: Literal["shuffled"] = "shuffled"


class AsGiven(Section):
    """The order of the mixture."""

    type: Literal["as_given"] = "as_given"


class EasyToHard(Section):
    """By measured pass rate, else by level."""

    type: Literal["easy_to_hard"] = "easy_to_hard"


Memory = Annotated[float, Field(ge=0, lt=1, description="Weight of the old estimate when a pass rate is updated.")]


class PassRate(Section):
    """Sampled with weight p (1 - p), p the pass rate in training."""

    type: Literal["pass_rate"] = "pass_rate"
    floor: float = Field(
        0.02, ge=0, le=0.25, description="Added to p (1 - p), so that every problem can still be sampled."
    )
    memory: Memory = 0.5


class PoolCurriculum(Section):
    """Hard, medium and easy problems by weight, by their running or predicted pass rate."""

    type: Literal["pools"] = "pools"
    pools: Pools = Pools()
    memory: Memory = 0.5
    adaptive: AdaptiveSamples | None = Field(
        None, description="More responses where they help; null: group_size for every prompt."
    )


class UserCurriculum(Section):
    """A class of yours hands out the problems."""

    type: Literal["user"] = "user"
    sampler: DottedOptions = Field(description="The class that hands out the problems.")


# Those whose order of problems is known before training.
FixedOrder = Shuffled | AsGiven | EasyToHard
Curriculum = Annotated[
    Shuffled | AsGiven | EasyToHard | PassRate | PoolCurriculum | UserCurriculum, Field(discriminator="type")
]
