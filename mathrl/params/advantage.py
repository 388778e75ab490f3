"""Section rl.advantage: how rewards become advantages, a union of the estimators with their own options."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from mathrl.params.optimizer import AdamW, Adapters, Optimizer
from mathrl.params.section import FreeOptions, OwnPath, Section, types_help


class Ramp(Section):
    """A number that moves linearly over some steps."""

    start: float = Field(description="Value at the first step.")
    end: float = Field(description="Value after `steps` steps, and from then on.")
    steps: int = Field(ge=1, description="Number of steps from start to end.")
    after: int = Field(0, ge=0, description="Number of steps before it moves.")

    def at(self, step: int) -> float:
        """The value at the step, counted from 0.

        >>> Ramp(start=1.0, end=0.0, steps=4).at(1), Ramp(start=1.0, end=0.0, steps=4, after=10).at(12)
        (0.75, 0.5)
        """
        return self.start + (self.end - self.start) * min(1.0, max(0, step - self.after) / self.steps)


class Critic(Section):
    """The value model of PPO: the policy's architecture with one output per token."""

    path: str | None = Field(
        None,
        min_length=1,
        description="Folder of the model that initialises the critic (a reward model or a causal LM); null: the "
        "policy. DVC does not watch it; in a recipe, name a step as the critic instead.",
    )
    # The rate of verl's PPO examples.
    optimizer: Optimizer = Field(AdamW(lr=1e-5, warmup_steps=0), description=types_help(Optimizer))
    lora: Adapters | None = Field(None, description="Train low-rank adapters (LoRA); null: train all weights.")
    clip: float | None = Field(
        0.5, gt=0, description="Value clipping: maximum distance of a value from the old value; null: no clipping."
    )
    warmup_steps: int = Field(
        0,
        ge=0,
        description="Steps at the start in which only the critic is trained, on the responses of the unchanged policy "
        "(VC-PPO's value pre-training).",
    )
    lam: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Lambda of the critic's targets (VC-PPO, VAPO: 1, the sum of the rewards to come); null: that of "
        "the policy's advantages.",
    )


Ddof = Annotated[
    Literal[0, 1], Field(description="Delta degrees of freedom of the group's standard deviation; 1: unbiased.")
]
Eps = Annotated[float, Field(ge=0, description="Added to the group's standard deviation.")]
Gamma = Annotated[float, Field(ge=0, le=1, description="Per-token discount.")]


class _Advantage(Section):
    """What all estimators share."""

    needs_group: ClassVar[bool] = False  # a group of one response has no advantage
    from_rewards: ClassVar[bool] = True  # a KL taken off the rewards of tokens reaches the advantage
    returns: ClassVar[bool] = False  # the advantages of a response's tokens differ: discounted sums of their rewards

    type: str
    whiten: bool = Field(
        False, description="Normalise advantages to mean 0 and variance 1 over all tokens of the batch (REINFORCE++)."
    )

    @property
    def set_size(self) -> int:
        """The least number of responses in a group."""
        return 2 if self.needs_group else 1


class Grpo(_Advantage):
    """GRPO (arXiv:2402.03300): the reward minus the group's mean, divided by its standard deviation."""

    needs_group: ClassVar[bool] = True
    type: Literal["grpo"] = "grpo"
    ddof: Ddof = 1
    eps: Eps = 1e-6


class DrGrpo(_Advantage):
    """Dr.GRPO (arXiv:2503.20783): the reward minus the group's mean, without a division."""

    needs_group: ClassVar[bool] = True
    type: Literal["dr_grpo"] = "dr_grpo"


class Rloo(_Advantage):
    """RLOO (arXiv:2402.14740): the reward minus the mean of the group's other responses."""

    needs_group: ClassVar[bool] = True
    type: Literal["rloo"] = "rloo"


class Gdpo(_Advantage):
    """GDPO: each reward part normalised in its group, then their weighted sum."""

    needs_group: ClassVar[bool] = True
    from_rewards: ClassVar[bool] = False
    type: Literal["gdpo"] = "gdpo"
    ddof: Ddof = 1
    eps: Eps = 1e-6
    weights: dict[str, float | Ramp] = Field(
        {},
        description="Weights of reward parts by name (default 1), instead of the parts' own: a number, or "
        "{start: 1, end: 0, steps: 50}.",
    )

    def at_step(self, step: int) -> "Gdpo":
        """The weights at a step, counted from 0: every ramp has its value."""
        weights = {
            name: weight.at(step) if isinstance(weight, Ramp) else weight for name, weight in self.weights.items()
        }
        return self.model_copy(update={"weights": weights})


class MaxRl(_Advantage):
    """MaxRL: the reward minus the group's mean, divided by that mean; rewards must be at least 0."""

    needs_group: ClassVar[bool] = True
    type: Literal["max_rl"] = "max_rl"


class _OfSets(_Advantage):
    needs_group: ClassVar[bool] = True
    k: int = Field(4, ge=2, description="Number of responses per set.")

    @property
    def set_size(self) -> int:
        """The least number of responses in a group: a set has k of them."""
        return self.k


class PassAtK(_OfSets):
    """Pass@k training: the reward of a set is its best response's, normalised over all sets of the group."""

    type: Literal["pass_at_k"] = "pass_at_k"
    eps: Eps = 1e-6


class Pkpo(_OfSets):
    """PKPO: the unbiased policy gradient of the best of k rewards."""

    type: Literal["pkpo"] = "pkpo"


class Reinforce(_Advantage):
    """REINFORCE: the return, without a baseline."""

    returns: ClassVar[bool] = True
    type: Literal["reinforce"] = "reinforce"
    gamma: Gamma = 1.0


class Remax(_Advantage):
    """ReMax (arXiv:2310.10505): the return minus the reward of the greedy response."""

    returns: ClassVar[bool] = True
    type: Literal["remax"] = "remax"
    gamma: Gamma = 1.0


class Rft(_Advantage):
    """Online rejection-sampling fine-tuning: 1 for a correct response, else 0."""

    from_rewards: ClassVar[bool] = False
    type: Literal["rft"] = "rft"


class Process(_Advantage):
    """GRPO with process supervision (arXiv:2402.03300, section 4.1.3): scores of reasoning steps."""

    from_rewards: ClassVar[bool] = False
    type: Literal["process"] = "process"
    ddof: Ddof = 1
    eps: Eps = 1e-6
    step_returns: Literal["sum", "mean"] = Field(
        "sum",
        description="How the scores of the steps that end at or after each token make its advantage; mean does not "
        "grow with their number.",
    )


class LengthLambda(Section):
    """A lambda that grows with the response, 1 - 1 / (alpha x tokens) and at least 0 (VAPO, arXiv:2504.05118)."""

    alpha: float = Field(0.05, gt=0, description="Share of a response's tokens over which an error is spread.")


Lambda = Annotated[float, Field(ge=0, le=1)]


class Gae(_Advantage):
    """PPO (arXiv:1707.06347): generalised advantage estimation from a critic's values."""

    returns: ClassVar[bool] = True
    type: Literal["gae"] = "gae"
    gamma: Gamma = 1.0
    lam: Lambda | LengthLambda = Field(
        1.0,
        description="Lambda of generalised advantage estimation: a number, or {alpha: 0.05} for one that grows with "
        "the length of the response (VAPO).",
    )
    critic: Critic = Critic()


class Distillation(_Advantage):
    """On-policy distillation: the teacher's log-prob minus the policy's; or its top-k tokens, by loss forward_kl."""

    from_rewards: ClassVar[bool] = False
    type: Literal["distillation"] = "distillation"


class SelfDistillation(_Advantage):
    """Self-distillation (OPSD): the policy's log-prob with the solution in its prompt minus that without it."""

    from_rewards: ClassVar[bool] = False
    type: Literal["self_distillation"] = "self_distillation"
    hint: str = Field(
        "{question}\n\nHere is a solution for reference:\n{solution}\n\nNow write the solution yourself.",
        description="The question as the teacher reads it, with {question} and {solution} (without one, the answer).",
    )

    @model_validator(mode="after")
    def _shows(self) -> "SelfDistillation":
        if "{question}" not in self.hint or "{solution}" not in self.hint:
            raise ValueError("hint must have {question} and {solution}")
        return self

    def show(self, question: str, solution: str) -> str:
        """The hint of a problem; other braces in it, such as LaTeX's, stay.

        >>> SelfDistillation(hint="{question} = {solution}?").show("1+1", "2")
        '1+1 = 2?'
        """
        before, after = self.hint.split("{solution}", 1)
        return f"{before.replace('{question}', question)}{solution}{after.replace('{question}', question)}"


class FunctionAdvantage(_Advantage):
    """An advantage per response or per token of your own (docs/how_to/extend/loss.md)."""

    from_rewards: ClassVar[bool] = False
    type: Literal["function"] = "function"
    path: OwnPath
    options: FreeOptions = Field(FreeOptions(), description="Keyword arguments of the function.")


Advantage = Annotated[
    Grpo
    | DrGrpo
    | Rloo
    | Gdpo
    | MaxRl
    | PassAtK
    | Pkpo
    | Reinforce
    | Remax
    | Rft
    | Process
    | Gae
    | Distillation
    | SelfDistillation
    | FunctionAdvantage,
    Field(discriminator="type"),
]
