"""From the files of an experiment to its parameters: presets and section files, one over the other."""

from mathrl.compose.load import load_params, write_params

__all__ = ["load_params", "write_params"]
