"""The command that serves a model to runs: vLLM's own server, which also takes new weights."""

import os
import sys
from pathlib import Path

from mathrl.models.device import hardware_of
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model
from mathrl.rollout.vllm_arguments import command_line, engine_arguments
from mathrl.rollout.vllm_engine import ENVIRONMENT, check_vllm, local_folder
from mathrl.rollout.vllm_login import login_headers

SERVER = {"worker_extension_cls": "mathrl.rollout.vllm_worker.WeightReader", "disable_uvicorn_access_log": True}


def serve_command(folder: Path | str, model: Model, rollout: Rollout, host: str, port: int) -> list[str]:
    """vLLM's OpenAI-compatible server of a model folder or hub id; see `serve_environment`.

    Raises:
        UserError: vLLM is not installed, or the folder is no model.
    """
    check_vllm()
    import torch  # whether there is a GPU

    hardware = hardware_of("cuda" if torch.cuda.is_available() else "cpu")
    arguments = engine_arguments(str(local_folder(folder)), model, rollout, hardware)
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        *("--host", host, "--port", str(port)),
        *command_line({**arguments, **SERVER}),
    ]
    if login_headers():
        command += ["--middleware", "mathrl.rollout.vllm_login.Login"]
    return command


def serve_environment(rollout: Rollout) -> dict[str, str]:
    """The server takes new weights (vLLM's development endpoints) and sends no usage statistics."""
    shared = {name: value for name, value in ENVIRONMENT.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    cache = {"VLLM_CPU_KVCACHE_SPACE": str(rollout.vllm.cache_gib or 1)}
    return cache | shared | os.environ | {"VLLM_SERVER_DEV_MODE": "1"}
