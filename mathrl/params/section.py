"""What every section of the parameters is, and a check that several have."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

SECRET = "secret"  # the type of an error whose input is not shown


class Section(BaseModel):
    """A frozen group of parameters in which an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _over_defaults(cls, values: Any) -> Any:
        """A section that is given in part keeps the rest of the field's default, not of the section's class."""
        if not isinstance(values, dict):
            return values
        merged = dict(values)
        for name, info in cls.model_fields.items():
            part = values.get(name)
            if isinstance(info.default, Section) and isinstance(part, dict):
                merged[name] = {key: getattr(info.default, key) for key in info.default.model_fields_set} | part
        return merged


def without_login(url: str) -> str:
    """The URL, where it holds no user or password: parameters are written into MLflow and reports.

    Raises:
        PydanticCustomError: it does.
    """
    if "@" in url:
        raise PydanticCustomError(
            SECRET,
            "no user or password in an address, since parameters are written into MLflow and reports; the "
            "key of `mathrl serve` is MATHRL_SERVE_KEY in the environment",
        )
    return url
