"""resolved.yaml: the final values of every section, on which the stages of dvc.yaml depend."""

from pathlib import Path

from mathrl.compose.load import load_params
from mathrl.core.files import write_text
from mathrl.params.load import FOLDER, dump_yaml

RESOLVED = "resolved.yaml"
HEADER = "# Made from params/ by the stage resolve: change params/, not this file.\n"


def write_resolved(checkout: Path = Path()) -> None:
    """Write resolved.yaml of a checkout, unless it has these values already.

    Raises:
        UserError: wrong parameters.
    """
    text = HEADER + dump_yaml(load_params(checkout / FOLDER).model_dump(mode="json", by_alias=True))
    file = checkout / RESOLVED
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        file.unlink(missing_ok=True)  # it may be a link into DVC's cache
        write_text(file, text)
