"""Section of sweeps: the search space, how trials are scored, and the budget."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from mathrl.params.section import Section

Number = int | float
Choice = bool | int | float | str | None


class _Range(Section):
    @model_validator(mode="after")
    def _check_order(self) -> "_Range":
        low, high = (float(getattr(self, end)) for end in ("low", "high"))
        if low >= high:
            raise ValueError(f"low {low:g} must be below high {high:g}")
        return self


class LogUniform(_Range):
    """A number on a logarithmic scale, such as a learning rate."""

    kind: Literal["log"]
    low: float = Field(gt=0, description="Smallest value.")
    high: float = Field(gt=0, description="Largest value.")


class Uniform(_Range):
    """A number on a linear scale."""

    kind: Literal["uniform"]
    low: float = Field(description="Smallest value.")
    high: float = Field(description="Largest value.")


class Integer(_Range):
    """A whole number; both ends are possible."""

    kind: Literal["int"]
    low: int = Field(description="Smallest value.")
    high: int = Field(description="Largest value.")
    step: int = Field(1, ge=1, description="Step between values.")


class Categorical(Section):
    """One of several values, unordered."""

    kind: Literal["choice"]
    values: tuple[Choice, ...] = Field(min_length=2, description="Two or more values.")


class ZeroOrLog(_Range):
    """Exactly 0, or a number on a logarithmic scale, such as the weight of the KL."""

    kind: Literal["zero_or_log"]
    low: float = Field(gt=0, description="Smallest value above 0.")
    high: float = Field(gt=0, description="Largest value.")
    zero_share: float = Field(0.25, gt=0, lt=1, description="Share of random trials with 0.")


Axis = Annotated[LogUniform | Uniform | Integer | Categorical | ZeroOrLog, Field(discriminator="kind")]


class Sweep(Section):
    """RL runs from one model, ranked by their dev accuracy alone."""

    study: str = Field("main", pattern=r"^[a-z0-9][a-z0-9_-]*$", description="Name of the study and of its folder.")
    space: dict[str, Axis] = Field(
        default_factory=dict,
        description="Search space by key, such as rl.optimizer.lr: {kind: log, low: 1e-5, high: 1e-3}; null removes a "
        "key.",
    )
    set: tuple[str, ...] = Field((), description="Dotted overrides of params/ for every trial.")
    trials: int | None = Field(12, ge=1, description="Total number of trials, including the first; null: no limit.")
    hours: float | None = Field(None, gt=0, description="Stop starting trials after this many hours; null: no limit.")
    seeds: int = Field(1, ge=1, le=100, description="Runs per trial, with seeds run.seed, run.seed + 1, …")
    evaluations: int = Field(1, ge=1, description="A run's score is the mean of its last n dev evaluations.")
    pruner: Literal["median", "hyperband", "forecast", "none"] = Field(
        "median",
        description="Rule that stops trials. median, hyperband: the dev curve falls behind the others; forecast: the "
        "curve's forecast for the end of its first run stays below the best trial.",
    )
    startup_trials: int = Field(4, ge=1, description="Random trials, never pruned, before the sampler takes over.")
    warmup_steps: int = Field(0, ge=0, description="Steps of its first run before a trial can be pruned.")
    sampler_seed: int = Field(0, ge=0, description="Seed of the sampler that proposes trials.")
    storage: Literal["journal", "environment"] = Field(
        "journal",
        description="journal: a file in the study's folder; environment: the postgresql:// URL in "
        "$MATHRL_SWEEP_STORAGE.",
    )
    workers: int = Field(1, ge=1, le=64, description="Concurrent trials on this machine.")
    keep_models: bool = Field(False, description="Keep the model of every trial, not only its metrics.")
    start: str = Field("models/sft", min_length=1, description="Folder of the model that every trial starts from.")
    data: tuple[str, ...] = Field(("data/mixture/train.jsonl",), min_length=1, description="Problems to train on.")
    dev: str = Field("data/curated/dev.jsonl", min_length=1, description="Problems on which trials are scored.")
    examples: str = Field("data/curated/sft.jsonl", min_length=1, description="Worked examples for few-shot prompts.")
    test: str = Field("data/curated/test.jsonl", min_length=1, description="Problems of `mathrl sweep compare` only.")
    fresh_seeds: int = Field(
        3, ge=1, description="New runs each of the winner and of the present parameters, compared on test."
    )

    @field_validator("space", mode="before")
    @classmethod
    def _without(cls, space: Any) -> Any:
        """Drop keys that are null: so a preset removes one that params/sweep.yaml varies."""
        return {k: v for k, v in space.items() if v is not None} if isinstance(space, dict) else space

    @model_validator(mode="after")
    def _fit(self) -> "Sweep":
        if self.trials is None and self.hours is None:
            raise ValueError("set trials or hours: without either the sweep has no end")
        if self.test in (self.dev, *self.data):
            raise ValueError(f"test ({self.test}) must not be seen by trials: name another dev or data")
        return self
