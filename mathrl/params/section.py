"""The base class of all sections of the parameters, and a check that several of them use."""

from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError


class Tags(NamedTuple):
    """A union's discriminator and its members: Tags("type", {"adamw": AdamW, "muon": Muon})."""

    field: str
    members: dict[str, Any]

    def members_with(self, name: str) -> list[str]:
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


def types_help(union: Any, about: str = "") -> str:
    """The help of a field that is a union: `about`, and the types by the first sentence of their docstrings.

    Example: "adamw: AdamW on every weight (arXiv:1711.05101); muon: Muon on the hidden matrices …".
    """
    tags = tags_of(union)
    assert tags is not None
    first = {tag: (member.__doc__ or "").strip().splitlines()[0] for tag, member in tags.members.items()}
    lines = (f"{tag}: {line.rstrip('.')}" for tag, line in first.items())
    return about + "; ".join(lines) + "."


SECRET = "secret"  # the type of an error whose input must not be shown
# The first of several kinds is what Prefect's form begins with: one without fields, which looks folded.
AS_IT_IS = {"title": "as it is", "type": "object", "properties": {}, "additionalProperties": False}


def fillable(schema: dict[str, Any]) -> None:
    """Let a person fill in the fields of a form, without first choosing that they are not null.

    A field that is empty by default is a number, text, choice or list at once, or one of several kinds that begins
    folded. What is left empty is not sent.
    """
    for field in schema.get("properties", {}).values():
        kinds = [kind for kind in field.get("anyOf", ()) if kind != {"type": "null"}]
        if len(kinds) == len(field.get("anyOf", ())):
            continue
        empty = field.get("default") is None
        del field["anyOf"]
        if empty:
            field.pop("default", None)
        if len(kinds) == 1 and kinds[0].get("type") == "boolean" and empty:
            field["enum"] = [True, False]  # a switch would have to be on or off
        elif len(kinds) == 1 and kinds[0].get("type") in ("boolean", "integer", "number", "string", "array"):
            field.update(kinds[0])
        else:
            field["anyOf"] = [AS_IT_IS, *kinds] if empty else kinds


class Section(BaseModel):
    """A frozen group of parameters in which an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, json_schema_extra=fillable
    )

    @model_validator(mode="before")
    @classmethod
    def _over_defaults(cls, values: Any) -> Any:
        """What is written in part keeps the rest of the field's default, not of the section's class.

        Of a union a bare name is short for that type, and without a type it is the default's.
        """
        if not isinstance(values, dict):
            return values
        merged, unions = dict(values), unions_of(cls)
        for name in cls.model_fields.keys() & values.keys():
            part, default = values[name], cls.model_fields[name].default
            if name in unions:
                field = unions[name].field
                part = {field: part} if isinstance(part, str) else part
                if isinstance(part, dict):
                    tag = part.get(field, usual_tag(cls, name))
                    part = {field: tag} | _keep_of_default(default, field, tag) | part
                merged[name] = part
            elif isinstance(default, Section) and isinstance(part, dict):
                merged[name] = default.written_fields() | part
        return merged

    def written_fields(self) -> dict[str, Any]:
        """The fields that were set, with their values."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def beside(self, tag: str) -> dict[str, Any]:
        """What a member of type `tag` takes from this default of a union, which is of another type."""
        return {}


def _keep_of_default(default: Any, field: str, tag: str) -> dict[str, Any]:
    """What a union's member of type `tag` keeps of the default."""
    if not isinstance(default, Section):
        return {}
    return default.written_fields() if getattr(default, field) == tag else default.beside(tag)


def is_url(url: str) -> str:
    """The URL unchanged, if it is one of HTTP.

    Raises:
        ValueError: it is not.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is not a URL; write http://host:port/v1")
    return url


def without_login(url: str) -> str:
    """The URL unchanged, if it contains no user or password: parameters are written into MLflow and reports.

    Raises:
        PydanticCustomError: it contains one.
    """
    if "@" in url:
        raise PydanticCustomError(
            SECRET,
            "write the URL without user and password, since parameters are written into MLflow and reports; the "
            "key of `mathrl serve` is MATHRL_SERVE_KEY in the environment",
        )
    return url


OWN_PATH = r"^\w+(\.\w+)*[.:]\w+$"  # of a function or class of the user: my.module:f, or my.module.f
OwnPath = Annotated[
    str, Field(pattern=OWN_PATH, description="Import path of your function, such as my_project.losses:my_loss.")
]


class Options(Section):
    """Options of one reward part or generator; dumped as they were written, without defaults."""

    @model_serializer(mode="wrap")
    def _as_written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if name in self.model_fields_set}

    def values(self) -> dict[str, Any]:
        """Every option with its value, defaults included: keyword arguments of a function."""
        return dict(self)


class FreeOptions(Options):
    """Options whose names only a user's function knows."""

    model_config = ConfigDict(extra="allow")


class DottedOptions(FreeOptions):
    """A function or class of the user, and its keyword arguments."""

    path: str = Field(
        pattern=OWN_PATH,
        description="Path, such as my.module:f; other options are keyword arguments of this function or class.",
    )

    def keywords(self) -> dict[str, Any]:
        return {name: value for name, value in self.values().items() if name != "path"}
