"""The command that serves a model to runs: vLLM's own server, which also takes new weights."""

import json
import os
import sys
from pathlib import Path

from mathrl.params.rollout import Rollout
from mathrl.params.run import Model, PretrainedModel
from mathrl.rollout.engine import dtype_name
from mathrl.rollout.vllm_engine import ENVIRONMENT, UNTIED, check_vllm, local_folder
from mathrl.rollout.vllm_login import login_headers


def serve_command(folder: Path | str, model: Model, rollout: Rollout, host: str, port: int) -> list[str]:
    """vLLM's OpenAI-compatible server of a model folder or hub id; see `serve_environment`.

    Raises:
        UserError: vLLM is not installed, or the folder is no model.
    """
    check_vllm()
    import torch  # whether there is a GPU

    options, on_gpu = rollout.vllm, torch.cuda.is_available()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(local_folder(folder)),
        "--host", host, "--port", str(port), "--dtype", dtype_name(rollout, model), "--seed", "0",
        "--max-num-seqs", str(rollout.max_sequences), "--tensor-parallel-size", str(options.tensor_parallel),
        "--gpu-memory-utilization", str(options.memory_share), "--generation-config", "vllm",
        "--logprobs-mode", "processed_logprobs", "--hf-overrides", json.dumps(UNTIED),
        "--worker-extension-cls", "mathrl.rollout.vllm_worker.WeightReader", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    if options.max_model_length:
        command += ["--max-model-len", str(options.max_model_length)]
    if options.cache_gib and on_gpu:
        command += ["--kv-cache-memory-bytes", str(options.cache_gib * 2**30)]
    if not on_gpu if options.eager is None else options.eager:
        command += ["--enforce-eager"]
    if isinstance(model.base, PretrainedModel) and model.base.trust_remote_code:
        command += ["--trust-remote-code"]
    if login_headers():
        command += ["--middleware", "mathrl.rollout.vllm_login.Login"]
    return command


def serve_environment(rollout: Rollout) -> dict[str, str]:
    """The server takes new weights (vLLM's development endpoints) and sends no usage statistics."""
    shared = {name: value for name, value in ENVIRONMENT.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    cache = {"VLLM_CPU_KVCACHE_SPACE": str(rollout.vllm.cache_gib or 1)}
    return cache | shared | os.environ | {"VLLM_SERVER_DEV_MODE": "1"}
