"""What every section of the parameters is, and a check that several have."""

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

SECRET = "secret"  # the type of an error whose input is not shown


class Section(BaseModel):
    """A frozen group of parameters in which an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


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
