"""The command that serves a model to runs: vLLM's own server, which also takes new weights."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mathrl.core.gpus import Hardware
from mathrl.models.device import hardware_of
from mathrl.models.load import local_folder
from mathrl.params.optimizer import Adapters
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model
from mathrl.servers.vllm_arguments import (
    ENVIRONMENT,
    adapter_arguments,
    check_vllm,
    command_line,
    engine_arguments,
    transfer_arguments,
)
from mathrl.servers.vllm_login import login_headers

# On a CPU the engine runs its worker itself, with this path for an executor: vLLM makes of "uni" one more process.
ONE_WORKER = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
SERVER = {"worker_extension_cls": "mathrl.servers.vllm_worker.WeightReader", "disable_uvicorn_access_log": True}


def serve_command(
    folder: Path | str, model: Model, rollout: Rollout, host: str, port: int, lora: Adapters | None = None
) -> list[str]:
    """vLLM's OpenAI-compatible server of a model folder or hub id; see `serve_environment`.

    With `lora` it takes an adapter of that section's rank.

    Raises:
        UserError: vLLM is not installed, the folder is no model, or `rollout.servers.weights` needs a GPU.
    """
    check_vllm()
    import torch  # whether there is a GPU

    hardware = hardware_of("cuda" if torch.cuda.is_available() else "cpu")
    arguments = server_arguments(str(local_folder(folder)), model, rollout, hardware, lora)
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        *("--host", host, "--port", str(port)),
        *command_line(arguments),
        *("--middleware", "mathrl.servers.served_weights.ServedWeights"),
    ]
    # Around the other one: vLLM itself answers every web page that a browser on this machine shows.
    guard = "mathrl.servers.vllm_login.Login" if login_headers() else "mathrl.core.request_origin.OwnRequests"
    return [*command, "--middleware", guard]


def server_arguments(
    folder: str, model: Model, rollout: Rollout, hardware: Hardware, lora: Adapters | None = None
) -> dict[str, Any]:
    """The fields of vLLM's `EngineArgs`, and one of its server, for a server on this hardware."""
    engine = engine_arguments(folder, model, rollout, hardware)
    if not hardware.is_gpu and rollout.vllm.tensor_parallel == 1:
        engine["distributed_executor_backend"] = ONE_WORKER
    return {**engine, **adapter_arguments(lora), **transfer_arguments(rollout, hardware), **SERVER}


def serve_environment(rollout: Rollout, environment: Mapping[str, str]) -> dict[str, str]:
    """`environment`, by which the server takes part in RL (vLLM's development endpoints) and sends no statistics."""
    shared = {name: value for name, value in ENVIRONMENT.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    cache = {"VLLM_CPU_KVCACHE_SPACE": str(rollout.vllm.cache_gib or 1)}
    return cache | shared | dict(environment) | {"VLLM_SERVER_DEV_MODE": "1"}
