"""What people change most: the fields with which a flow's form opens, and what tells runs apart in a list."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any

from pydantic.fields import FieldInfo

from mathrl.params.form import field_help
from mathrl.params.run import FreshModel, PretrainedModel
from mathrl.params.schema import SECTIONS, Params

SEED, BASE = "run.seed", "model.base"
RL = ("rl.lr", "rl.steps", "rl.group_size", "rl.kl_coef", "rl.clip_low", "rl.clip_high")
# By flow; any other has the seed alone.
MAIN = {
    "pipeline": (BASE, *RL, SEED),
    "rl": (BASE, *RL, SEED),
    "sft": (BASE, "sft.lr", "sft.steps", SEED),
    "evaluate": (BASE, "evaluate.samples", "evaluate.temperature", "evaluate.max_tokens", SEED),
    "sweep": ("sweep.trials", "sweep.seeds", "sweep.workers"),
    "recipe": (),
    "controls": (),
}
FRESH = "fresh"
# Help for people who do not know the method; the help of section rl, below in the form, says it exactly.
HELP = {
    "rl.lr": "Peak learning rate: how far each step moves the weights. Too high: the accuracy collapses; too low: "
    "nothing changes.",
    "rl.steps": "Number of training steps; each samples responses and learns from them once.",
    "rl.group_size": "Responses sampled per problem; the model learns from the difference between good and bad ones.",
    "rl.kl_coef": "How strongly the model is held near its start; 0: not at all.",
    "rl.clip_low": "How much less likely one update may make a token: 0.2 is by a fifth at most.",
    "rl.clip_high": "How much more likely one update may make a token: 0.28 is by 28 % at most.",
    "sft.lr": "Peak learning rate: how far each step moves the weights.",
    "sft.steps": "Number of training steps on worked examples; 0: keep the base model.",
    "evaluate.samples": "Responses per problem; more make the figures more certain and take longer.",
    "evaluate.temperature": "How varied the responses are; 0: always the most likely one.",
    "evaluate.max_tokens": "Longest response in tokens; longer ones are cut off and count as wrong.",
    SEED: "Number from which all chance is drawn. Other seeds show how much of a result is chance.",
}


@dataclass(frozen=True)
class MainField:
    """A field of a form: MainField("rl.lr", Annotated[float, Ge(0), Le(1)], "rl.lr: Peak …", present=0.01)."""

    key: str
    kind: Any
    help_text: str
    present: Any

    @property
    def name(self) -> str:
        return "base_model" if self.key == BASE else self.key.rpartition(".")[2]

    def override(self, value: Any) -> str:
        """The dotted override by which the parameter gets this value."""
        if self.key != BASE:
            return f"{self.key}={json.dumps(value, ensure_ascii=False)}"
        base: dict[str, str] = {"type": "fresh"} if value == FRESH else {"type": "pretrained", "path": value}
        return f"{self.key}={json.dumps(base, ensure_ascii=False)}"


def main_fields(flow: str, params: Params) -> list[MainField]:
    """The fields of a flow's form, with the values that `params` have; one that is null there is left out."""
    fields = [_field(key, params) for key in MAIN.get(flow, (SEED,))]
    return [field for field in fields if field.present is not None]


def main_overrides(fields: list[MainField], values: Mapping[str, Any]) -> list[str]:
    """The overrides of those fields whose value a person changed: a form sends the others as it showed them."""
    return [field.override(values[field.name]) for field in fields if values[field.name] != field.present]


def base_name(base: FreshModel | PretrainedModel) -> str:
    """What a form shows of a base model: "fresh", a folder, a hub id."""
    return FRESH if isinstance(base, FreshModel) else base.path


def _field(key: str, params: Params) -> MainField:
    if key == BASE:
        about = "model.base: hub id or local folder of a pretrained model; fresh: a small one with random weights."
        return MainField(key, str, about, base_name(params.model.base))
    section, *path = key.split(".")
    info: FieldInfo = SECTIONS[section].model_fields[path[-1]]
    present = reduce(getattr, path, getattr(params, section))
    kind = type(present) if isinstance(present, float | int) else info.annotation
    return MainField(key, Annotated[kind, *info.metadata], f"{key}: {HELP.get(key) or field_help(info)}", present)
