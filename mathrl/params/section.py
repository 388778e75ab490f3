"""What every section of the parameters is."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of parameters in which an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)
