"""`mathrl serve`: this process becomes a vLLM server that runs sample from."""

import os
from collections.abc import Sequence
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.paths import is_loopback, main_checkout
from mathrl.params import load_params
from mathrl.rollout.vllm_login import KEY


def serve(model: str, host: str, port: int, preset: str | None, overrides: Sequence[str]) -> None:
    """Serve a model folder or hub id as the sections model and rollout say; does not return.

    Raises:
        UserError: no such model, vLLM is not installed, or others could reach the server without a key.
    """
    check_key(host)
    here = Path(model).absolute()  # relative to where the person stands, not to the checkout
    os.chdir(main_checkout())
    params = load_params(preset=preset, overrides=overrides)
    from mathrl.rollout.serve import serve_command, serve_environment  # torch

    command = serve_command(here if here.exists() else model, params.model, params.rollout, host, port)
    os.execvpe(command[0], command, serve_environment(params.rollout))


def check_key(host: str) -> None:
    """Raises UserError: `host` is not loopback, and no key is set."""
    if not is_loopback(host) and not os.environ.get(KEY):
        raise UserError(
            f"--host {host} lets everyone who reaches it replace the weights: keep 127.0.0.1 and reach it by "
            f"`ssh -L 8001:127.0.0.1:8001`, or set {KEY} to a key of your own, here and where runs start"
        )
