"""Whether an engine's packages are there, asked without importing them."""

import importlib.util

from mathrl.core.errors import UserError

PACKAGES = {"trl": ("trl", "accelerate")}


def check_installed(engine: str, setting: str) -> None:
    """Raises UserError: a package of the engine, named by `setting`, is missing; the message has the command."""
    missing = [name for name in PACKAGES.get(engine, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"{setting} is {engine}, but {' and '.join(missing)} cannot be found: pip install -c constraints.txt "
            f"'mathrl[{engine}]', or set {setting} to mathrl"
        )
