"""Forms: each section as an all-optional model, so that only what a person sets is sent."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, reduce
from typing import Annotated, Any, Optional, Union

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from mathrl.params.loss import LossKl
from mathrl.params.schema import Params
from mathrl.params.section import FreeOptions, Section, Tags, fillable, unions_of


@cache
def form(section: type[Section], tag: str = "") -> type[BaseModel]:
    """The section with every field optional and empty; bounds, choices and help texts are kept.

    Inner sections and the types of a union become forms too; anything else (lists, null or a section) is sent whole.
    Of a member of a union the field `tag` tells it apart from the others: it is sent.
    """
    fields: dict[str, Any] = {}
    for name, info in section.model_fields.items():
        kind, tags = info.annotation, unions_of(section).get(name)
        if isinstance(kind, type) and issubclass(kind, Section) and not issubclass(kind, FreeOptions):
            kind = form(kind)
        elif tags is not None:
            kind = _choice(tags)
        elif name == tag:
            fields[name] = (kind, info)
            continue
        default = info.get_default(call_default_factory=True, validated_data={})
        help_text = [part for part in (field_help(info), _default_text(default)) if part]
        copied: Any = Field(None, title=name, description=" ".join(help_text))
        fields[name] = (_with_bounds(kind, info), copied)
    return create_model(
        f"{section.__name__}Form",
        __config__=ConfigDict(extra="forbid", title="change", json_schema_extra=fillable),
        __doc__=section.__doc__,
        **fields,
    )


def _choice(tags: Tags) -> Any:
    """The forms of a union's members as a union."""
    kinds = tuple(form(member, tags.field) for member in dict.fromkeys(tags.members.values()))
    return Annotated[Union[kinds], Field(discriminator=tags.field)] if len(kinds) > 1 else kinds[0]  # noqa: UP007


def section_form(name: str) -> type[BaseModel]:
    """The form of the section that params/<name>.yaml holds."""
    for field, info in Params.model_fields.items():
        if name in (field, info.alias):
            assert isinstance(info.annotation, type)
            kind: type[Section] = info.annotation
            return form(kind)
    raise KeyError(name)


def form_overrides(sections: Mapping[str, BaseModel | None]) -> list[str]:
    """The values set in the forms as dotted overrides: {"rl": RlForm(steps=8)} → ["rl.steps=8"]."""
    overrides: list[str] = []
    for name, values in sections.items():
        if values is not None:
            overrides += _dotted_overrides(name, values, values.model_dump(mode="json", exclude_none=True))
    return overrides


def _dotted_overrides(path: str, form: BaseModel, dumped: Mapping[str, Any]) -> list[str]:
    overrides: list[str] = []
    for name, value in dumped.items():
        inner = getattr(form, name)
        if isinstance(inner, BaseModel) and not isinstance(inner, Section):
            overrides += _dotted_overrides(f"{path}.{name}", inner, value)
        else:
            overrides.append(f"{path}.{name}={json.dumps(value, ensure_ascii=False)}")  # JSON is YAML
    return overrides


def _with_bounds(kind: Any, info: FieldInfo) -> Any:
    """`kind | None` with the bounds on `kind`, because a form shows them only there."""
    bounded = kind
    for bound in info.metadata:
        bounded = Annotated[bounded, bound]
    return Optional[bounded]  # noqa: UP045


def field_help(info: FieldInfo) -> str:
    """The help text with the bounds in words, since a form shows them only once they are violated."""
    words = {"ge": "at least {:.10g}", "gt": "above {:.10g}", "le": "at most {:.10g}", "lt": "below {:.10g}"}
    bounds = [
        text.format(float(getattr(bound, name)))
        for bound in info.metadata
        for name, text in words.items()
        if getattr(bound, name, None) is not None
    ]
    about = (info.description or "").rstrip(".")
    return "; ".join(part for part in (about, ", ".join(bounds)) if part) + "." * bool(about or bounds)


def _default_text(default: Any) -> str:
    if default is None or isinstance(default, Section) or repr(default) == "PydanticUndefined":
        return ""
    if isinstance(default, tuple | list | dict) and len(str(default)) > 60:
        return ""
    return f"Empty: as in params/ (default {json.dumps(default, default=str, ensure_ascii=False)})."


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
