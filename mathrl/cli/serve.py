"""`mathrl serve`: this process becomes a vLLM server that runs sample from."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mathrl.core.places import main_checkout
from mathrl.params import load_params


def serve(model: str, host: str, port: int, preset: str | None, overrides: Sequence[str]) -> None:
    """Serve a model folder or hub id as the sections model and rollout say; does not return.

    Raises:
        UserError: no such model, or vLLM is not installed.
    """
    here = Path(model).absolute()  # relative to where the person stands, not to the checkout
    os.chdir(main_checkout())
    params = load_params(preset=preset, overrides=overrides)
    from mathrl.rollout.serve import LOOPBACK, serve_command, serve_environment  # torch

    command = serve_command(here if here.exists() else model, params.model, params.rollout, host, port)
    if host not in LOOPBACK:
        print(
            f"whoever reaches {host}:{port} can replace the weights: keep it in a closed network",
            file=sys.stderr,
        )
    os.execvpe(command[0], command, serve_environment(params.rollout))
