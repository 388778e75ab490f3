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
    return MainField(key, Annotated[kind, *info.metadata], f"{key}: {field_help(info)}", present)
