"""Discriminated unions in the types of fields: the field that tells the members apart, and the members by its value."""

from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo


class Tags(NamedTuple):
    """A union's discriminator and its members: Tags("type", {"adamw": AdamW, "muon": Muon})."""

    field: str
    members: dict[str, Any]

    def having(self, name: str) -> list[str]:
        """The tags of the members with a field of this name."""
        return [tag for tag, member in self.members.items() if name in getattr(member, "model_fields", ())]


def annotation(info: FieldInfo) -> Any:
    """The type of a field with its discriminator, which pydantic stores separately."""
    tag = info.discriminator
    return info.annotation if tag is None else Annotated[info.annotation, Field(discriminator=tag)]


def tags_of(kind: Any) -> Tags | None:
    """The union that a type is, alone or beside None; an inner union's members by its own tag."""
    if get_origin(kind) is Annotated:
        inner, *metadata = get_args(kind)
        field = next((item.discriminator for item in metadata if getattr(item, "discriminator", None)), None)
        if not isinstance(field, str) or get_origin(inner) not in (Union, UnionType):
            return tags_of(inner)
        return Tags(field, {value: member for member in get_args(inner) for value in _values(member, field)})
    if get_origin(kind) in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not type(None)]
        return tags_of(members[0]) if len(members) == 1 else None
    return None


def _values(member: Any, field: str) -> list[str]:
    if get_origin(member) is Annotated:
        return list(dict.fromkeys(tag for inner in get_args(get_args(member)[0]) for tag in _values(inner, field)))
    kind = member.model_fields[field].annotation
    return [str(value) for value in get_args(kind)] if get_origin(kind) is Literal else []


@cache
def unions_of(section: type[BaseModel]) -> dict[str, Tags]:
    """The fields of a section that are discriminated unions, with their members."""
    found = {name: tags_of(annotation(info)) for name, info in section.model_fields.items()}
    return {name: tags for name, tags in found.items() if tags is not None}


def usual_tag(section: type[BaseModel], name: str) -> str:
    """The type that the field `name`, a union, has where none is written: its default's, else the first."""
    field, members = unions_of(section)[name]
    return str(getattr(section.model_fields[name].default, field, next(iter(members))))
