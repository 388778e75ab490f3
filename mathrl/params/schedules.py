"""Section rl.schedules: settings that move over the steps of a run, all in one form, that of rl.advantage.weights."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from mathrl.params.advantage import Gdpo, Ramp
from mathrl.params.loss import KlProbe
from mathrl.params.section import Section

if TYPE_CHECKING:
    from mathrl.params.train import Rl

Schedule = Ramp | tuple[Ramp, ...]
# Least and most that a setting may be.
BOUNDS = {
    "temperature": (0.01, float("inf")),
    "max_tokens": (1, float("inf")),
    "low": (1e-12, 1),
    "high": (1e-12, float("inf")),
    "kl_coef": (0, float("inf")),
    "entropy_coef": (0, float("inf")),
}
SAMPLING = ("temperature", "max_tokens", "reward_weights")


def value_at(schedule: Schedule, step: int) -> float:
    """The value at a step, counted from 0: that of the last ramp that has begun, of the first before.

    >>> stages = tuple(Ramp(start=8192 * n, end=8192 * (n + 1), after=100 * n, steps=1) for n in (1, 2))
    >>> [value_at(stages, step) for step in (0, 100, 101, 300)]
    [8192.0, 8192.0, 16384.0, 24576.0]
    """
    ramps = schedule if isinstance(schedule, tuple) else (schedule,)
    return next((ramp for ramp in reversed(ramps) if ramp.after <= step), ramps[0]).at(step)


class Schedules(Section):
    """What moves over the steps, in place of the setting of that name: a ramp each, or a list of ramps in order.

    Example: {temperature: {start: 1.0, end: 1.2, steps: 200}, max_tokens: [{start: 8192, end: 16384, after: 500,
    steps: 1}, {start: 16384, end: 24576, after: 800, steps: 1}]}
    """

    temperature: Schedule | None = Field(
        None, description="rl.temperature, of sampling and of the update; null: constant."
    )
    max_tokens: Schedule | None = Field(
        None, description="Maximum response length of the step, at most rl.max_tokens; null: constant."
    )
    low: Schedule | None = Field(None, description="rl.loss.low; null: constant.")
    high: Schedule | None = Field(None, description="rl.loss.high; null: constant.")
    kl_coef: Schedule | None = Field(None, description="rl.kl.coef; null: constant.")
    entropy_coef: Schedule | None = Field(None, description="rl.loss.entropy_coef; null: constant.")
    reward_weights: dict[str, Schedule] = Field(
        {}, description="Weights of reward.parts, by the name of the part; the others stay."
    )

    def values_at(self, step: int) -> dict[str, float]:
        """The value of each setting that moves, by its name here; a weight of the reward as reward_weights/NAME."""
        moving = {name: schedule for name in BOUNDS if (schedule := getattr(self, name)) is not None}
        moving |= {f"reward_weights/{name}": schedule for name, schedule in self.reward_weights.items()}
        return {name: value_at(schedule, step) for name, schedule in moving.items()}

    def weights_at(self, step: int) -> dict[str, float]:
        """The weights of the reward's parts that move."""
        return {name: value_at(schedule, step) for name, schedule in self.reward_weights.items()}

    def changes(self, rl: "Rl", step: int) -> dict[str, Any]:
        """What is other in the section rl at a step."""
        values = self.values_at(step)
        made: dict[str, Any] = {name: values[name] for name in ("temperature",) if name in values}
        if "max_tokens" in values:
            made["max_tokens"] = round(values["max_tokens"])
        loss: dict[str, Any] = {name: values[name] for name in ("low", "high", "entropy_coef") if name in values}
        if loss:
            made["loss"] = rl.loss.model_copy(update=loss)
        if rl.kl is not None and "kl_coef" in values:
            made["kl"] = rl.kl.model_copy(update={"coef": values["kl_coef"]})
        return made

    def problems(self, rl: "Rl") -> Iterator[str]:
        """What does not fit the rest of the section rl, with what to write instead."""
        for name, (least, most) in BOUNDS.items():
            schedule = getattr(self, name)
            ramps = schedule if isinstance(schedule, tuple) else (schedule,) if schedule is not None else ()
            most = rl.max_tokens if name == "max_tokens" else most
            for value in (value for ramp in ramps for value in (ramp.start, ramp.end)):
                if not least <= value <= most:
                    yield f"schedules.{name}: {value:g} is not within {least:g} and {most:g}"
            if schedule == () or [ramp.after for ramp in ramps] != sorted({ramp.after for ramp in ramps}):
                yield f"schedules.{name} needs ramps in the order of their `after`, each another one"
        for name in ("low", "high"):
            if getattr(self, name) is not None and not hasattr(rl.loss, name):
                yield f"schedules.{name}: loss {rl.loss.type} has no {name}; leave the schedule out"
        if self.kl_coef is not None and (rl.kl is None or isinstance(rl.kl, KlProbe) or not rl.kl.coef):
            yield "schedules.kl_coef needs kl with type loss or reward and a coef above 0, such as kl: {}"
        elif self.kl_coef is not None and rl.kl is not None and getattr(rl.kl, "controller", None) is not None:
            yield "schedules.kl_coef and kl.controller both set the coefficient: leave one out"
        if self.entropy_coef is not None and rl.loss.entropy_controller is not None:
            yield "schedules.entropy_coef and loss.entropy_controller both set the coefficient: leave one out"
        if self.reward_weights and isinstance(rl.advantage, Gdpo):
            yield "schedules.reward_weights has no effect on advantage gdpo: write ramps into advantage.weights"
        if rl.asynchronous is not None:
            for name in SAMPLING:
                if getattr(self, name):
                    yield f"schedules.{name} needs steps that sample by themselves: set asynchronous null"
