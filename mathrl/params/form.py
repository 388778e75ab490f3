"""Forms: each section as an all-optional model, so that only what a person sets is sent."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Optional

from pydantic import BaseModel, ConfigDict, create_model
from pydantic.fields import FieldInfo

from mathrl.params.schema import Params
from mathrl.params.section import Section


@cache
def form(section: type[Section]) -> type[BaseModel]:
    """The section with every field optional and empty, its bounds, choices and help texts kept.

    Sections within it become forms of their own; anything else (lists, choices between types) is sent whole.
    """
    fields: dict[str, Any] = {}
    for name, info in section.model_fields.items():
        kind: Any = info.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            kind = form(kind)
        default = info.get_default(call_default_factory=True, validated_data={})
        help_text = " ".join(part for part in (info.description, _default_text(default)) if part)
        copied = FieldInfo.from_annotation(Optional[kind])  # noqa: UP045 - `kind | None` fails on an alias
        copied.default, copied.title, copied.description = None, name, help_text
        copied.metadata = list(info.metadata)
        fields[name] = (_bounded(kind, info), copied)
    return create_model(
        f"{section.__name__}Form",
        __config__=ConfigDict(extra="forbid", title=section.__name__),
        __doc__=section.__doc__,
        **fields,
    )


def section_form(name: str) -> type[BaseModel]:
    """The form of the section that params/<name>.yaml holds."""
    for field, info in Params.model_fields.items():
        if name in (field, info.alias):
            assert isinstance(info.annotation, type)
            return form(info.annotation)
    raise KeyError(name)


def form_overrides(sections: Mapping[str, BaseModel | None]) -> list[str]:
    """What a person set, as dotted overrides: {"rl": RlForm(lr=2e-4)} → ["rl.lr=0.0002"]."""
    found: list[str] = []
    for name, values in sections.items():
        if values is not None:
            found += _dotted(name, values.model_dump(mode="json", exclude_none=True))
    return found


def _dotted(path: str, value: Any) -> list[str]:
    if isinstance(value, dict) and value and "type" not in value:
        return [line for key, each in value.items() for line in _dotted(f"{path}.{key}", each)]
    return [f"{path}={json.dumps(value, ensure_ascii=False)}"]  # JSON is YAML


def _bounded(kind: Any, info: FieldInfo) -> Any:
    """`kind | None` with the bounds on `kind`, where a form shows them."""
    bounded = kind
    for bound in info.metadata:
        bounded = Annotated[bounded, bound]
    return Optional[bounded]  # noqa: UP045


def _default_text(default: Any) -> str:
    if default is None or isinstance(default, Section) or repr(default) == "PydanticUndefined":
        return ""
    if isinstance(default, tuple | list | dict) and len(str(default)) > 60:
        return ""
    return f"Empty: as in params/ (default {json.dumps(default, default=str, ensure_ascii=False)})."
