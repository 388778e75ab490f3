"""Forms: each section as an all-optional model, so that only what a person sets is sent."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Optional, Union

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from mathrl.params.options import FreeOptions
from mathrl.params.schema import Params
from mathrl.params.section import Section, fillable
from mathrl.params.unions import Tags, unions_of


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
        fields[name] = (_bounded(kind, info), copied)
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
            overrides += _dotted(name, values, values.model_dump(mode="json", exclude_none=True))
    return overrides


def _dotted(path: str, form: BaseModel, dumped: Mapping[str, Any]) -> list[str]:
    overrides: list[str] = []
    for name, value in dumped.items():
        inner = getattr(form, name)
        if isinstance(inner, BaseModel) and not isinstance(inner, Section):
            overrides += _dotted(f"{path}.{name}", inner, value)
        else:
            overrides.append(f"{path}.{name}={json.dumps(value, ensure_ascii=False)}")  # JSON is YAML
    return overrides


def _bounded(kind: Any, info: FieldInfo) -> Any:
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
