"""The parameters: one pydantic schema, the only YAML loader and the only dotted-override parser."""

from mathrl.params.load import stage_params
from mathrl.params.schema import Params

__all__ = ["Params", "stage_params"]
