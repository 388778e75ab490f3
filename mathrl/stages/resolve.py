"""resolve: the parameters as every other stage reads them. `python -m mathrl.stages.resolve`.

Writes resolved.yaml: each section with its final values, from the composition, params/ and the schema's defaults. The
other stages of dvc.yaml depend on their sections of it and on nothing in params/, so that a default, a group or a file
that changes reruns exactly the stages whose values change.
"""

from mathrl.compose.load import write_resolved
from mathrl.core.errors import exit_on_user_error

if __name__ == "__main__":
    exit_on_user_error(write_resolved)
