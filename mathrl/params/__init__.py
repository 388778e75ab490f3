"""The parameters: one pydantic schema, the only YAML loader and the only dotted-override parser."""

from mathrl.params.load import load_params, stage_params, write_params
from mathrl.params.schema import Params

__all__ = ["Params", "load_params", "stage_params", "write_params"]
