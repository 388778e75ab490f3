"""`mathrl serve`: a vLLM server that runs sample from, in place of this process."""

import os
from pathlib import Path
from typing import Annotated

import typer

from mathrl.cli.options import Choices, Overrides, Presets, join_presets, with_choices
from mathrl.compose import load_params
from mathrl.core.errors import UserError
from mathrl.core.paths import is_loopback, main_checkout
from mathrl.servers.protocol import KEY, login_headers


def serve(
    model: Annotated[str, typer.Argument(help="Hugging Face model folder or hub id.")],
    choices: Choices = None,
    port: Annotated[int, typer.Option(help="Port to listen on; runs find the server by rollout.servers.urls.")] = 8001,
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but loopback is reachable by others.")
    ] = "127.0.0.1",
    presets: Presets = None,
    overrides: Overrides = None,
) -> None:
    """Serve a model with vLLM, for runs with rollout.engine=vllm_server; Ctrl-C ends it."""
    overrides = with_choices(choices, overrides)
    check_key(host)
    local = Path(model).absolute()  # relative to the current folder, not to the checkout
    os.chdir(main_checkout())
    params = load_params(preset=join_presets(presets), overrides=overrides or ())
    from mathrl.servers.serve import serve_command, serve_environment  # torch: after the checks

    folder = local if local.exists() else model
    command = serve_command(folder, params.model, params.rollout, host, port, params.rl.lora)
    os.execvpe(command[0], command, serve_environment(params.rollout, os.environ))


def check_key(host: str) -> None:
    """Raises UserError: `host` is not loopback, and no key is set."""
    if not is_loopback(host) and not login_headers():
        raise UserError(
            f"--host {host} lets everyone who reaches it replace the weights: keep 127.0.0.1 and connect by "
            f"`ssh -L 8001:127.0.0.1:8001`, or set {KEY} to a secret key, here and where runs start"
        )
