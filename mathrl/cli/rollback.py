"""`mathrl rollback`: make the previous champion the champion again."""

from typing import Annotated

import typer

from mathrl.cli.output import AsJson, print_document
from mathrl.registry import promote as gate
from mathrl.tracking.client import connect


def rollback(
    model: Annotated[str, typer.Argument(help="Name of a registered model.")], as_json: AsJson = False
) -> None:
    """Make the previous champion of a model its champion again."""
    decision = gate.rollback(connect(), model)
    if as_json:
        print_document({"decision": decision})
    else:
        print(decision)
