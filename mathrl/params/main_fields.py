"""What people change most: the fields with which a flow's form opens, and what tells runs apart in a list."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any

from pydantic.fields import FieldInfo

from mathrl.params.form import field_help
from mathrl.params.loss import LossKl
from mathrl.params.schema import Params

SEED = "run.seed"
RL = ("rl.optimizer.lr", "rl.steps", "rl.group_size", "rl.kl.coef", "rl.loss.low", "rl.loss.high")
# By flow; any other has the seed alone.
MAIN = {
    "pipeline": (*RL, SEED),
    "rl": (*RL, SEED),
    "sft": ("sft.optimizer.lr", "sft.steps", SEED),
    "evaluate": ("evaluate.samples", "evaluate.temperature", "evaluate.max_tokens", SEED),
    "sweep": ("sweep.trials", "sweep.seeds", "sweep.workers"),
    "recipe": (),
    "controls": (),
}
NAMES = {"rl.kl.coef": "kl_coef", "rl.loss.low": "clip_low", "rl.loss.high": "clip_high"}
# Help for people who do not know the method; the help of section rl, below in the form, says it exactly.
HELP = {
    "rl.optimizer.lr": "Peak learning rate: how far each step moves the weights. Too high: the accuracy collapses; too "
    "low: nothing changes.",
    "rl.steps": "Number of training steps; each samples responses and learns from them once.",
    "rl.group_size": "Responses sampled per problem; the model learns from the difference between good and bad ones.",
    "rl.kl.coef": "How strongly the model is held near its start; 0: not at all.",
    "rl.loss.low": "How much less likely one update may make a token: 0.2 is by a fifth at most.",
    "rl.loss.high": "How much more likely one update may make a token: 0.28 is by 28 % at most.",
    "sft.optimizer.lr": "Peak learning rate: how far each step moves the weights.",
    "sft.steps": "Number of training steps on worked examples; 0: keep the base model.",
    "evaluate.samples": "Responses per problem; more make the figures more certain and take longer.",
    "evaluate.temperature": "How varied the responses are; 0: always the most likely one.",
    "evaluate.max_tokens": "Longest response in tokens; longer ones are cut off and count as wrong.",
    SEED: "Number from which all chance is drawn. Other seeds show how much of a result is chance.",
}


@dataclass(frozen=True)
class MainField:
    """A field of a form: MainField("rl.steps", Annotated[int, Ge(1)], "rl.steps: Number …", present=50)."""

    key: str
    kind: Any
    help_text: str
    present: Any

    @property
    def name(self) -> str:
        return NAMES.get(self.key, self.key.rpartition(".")[2])

    def override(self, value: Any) -> str:
        """The dotted override by which the parameter gets this value."""
        return f"{self.key}={json.dumps(value, ensure_ascii=False)}"


def main_fields(flow: str, params: Params) -> list[MainField]:
    """The fields of a flow's form, with the values that `params` have; one that is null there is left out."""
    fields = [_field(key, params) for key in MAIN.get(flow, (SEED,))]
    return [field for field in fields if field.present is not None]


def main_overrides(fields: list[MainField], values: Mapping[str, Any]) -> list[str]:
    """The overrides of those fields whose value a person changed: a form sends the others as it showed them."""
    return [field.override(values[field.name]) for field in fields if values[field.name] != field.present]


def _field(key: str, params: Params) -> MainField:
    present = present_value(params, key)
    if present is None:
        return MainField(key, str, "", None)
    info = _field_info(params, key)
    kind = type(present) if isinstance(present, float | int) else info.annotation
    return MainField(key, Annotated[kind, *info.metadata], f"{key}: {HELP.get(key) or field_help(info)}", present)


def present_value(params: Params, key: str) -> Any:
    """The value of a parameter; a KL that is null has coefficient 0, and what a union's type lacks is None."""
    if key == "rl.kl.coef" and params.rl.kl is None:
        return 0.0
    value: Any = params
    for name in key.split("."):
        value = getattr(value, name, None)
    return value


def _field_info(params: Params, key: str) -> FieldInfo:
    *above, last = key.split(".")
    section = LossKl if key == "rl.kl.coef" else type(reduce(getattr, above, params))
    return section.model_fields[last]
