"""`mathrl promote` and `mathrl rollback`: the champion, through the gate and back."""

import os
import sys
from collections.abc import Sequence

from mathrl.core.paths import main_checkout
from mathrl.tracking.client import connect


def promote(model: str, benchmark: str | None, preset: str | None, overrides: Sequence[str]) -> None:
    """Print the decision; a refusal ends the process with status 1.

    Raises:
        UserError: no such version, or it cannot be evaluated.
    """
    from mathrl.registry.promote import promote as through_gate

    os.chdir(main_checkout())
    done, said = through_gate(connect(), model, benchmark, preset, overrides)
    print(said)
    if not done:
        sys.exit(1)


def rollback(model: str) -> None:
    """Print which version is champion again."""
    from mathrl.registry.promote import rollback as back

    print(back(connect(), model))
