"""`mathrl rollback`: make the previous champion the champion again."""

from typing import Annotated

import typer

from mathrl.registry import promote as gate
from mathrl.tracking.client import connect


def rollback(model: Annotated[str, typer.Argument(help="Name of a registered model.")]) -> None:
    """Make the previous champion of a model its champion again."""
    print(gate.rollback(connect(), model))
