"""The base class of all sections of the parameters, and a check that several of them use."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from mathrl.params.unions import unions_of, usual_tag

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
                    part = {field: tag} | _kept(default, field, tag) | part
                merged[name] = part
            elif isinstance(default, Section) and isinstance(part, dict):
                merged[name] = default.written() | part
        return merged

    def written(self) -> dict[str, Any]:
        """The fields that were set, with their values."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def beside(self, tag: str) -> dict[str, Any]:
        """What a member of type `tag` takes from this default of a union, which is of another type."""
        return {}


def _kept(default: Any, field: str, tag: str) -> dict[str, Any]:
    """What a union's member of type `tag` keeps of the default."""
    if not isinstance(default, Section):
        return {}
    return default.written() if getattr(default, field) == tag else default.beside(tag)


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
