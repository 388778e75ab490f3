"""vLLM's arguments, made from the parameters and the hardware as a value: for an engine in process and for a server."""

import importlib.util
import json
from collections.abc import Mapping
from typing import Any

from mathrl.core.environment import install_command
from mathrl.core.errors import UserError
from mathrl.core.gpus import Hardware
from mathrl.params.optimizer import Adapters
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model, PretrainedModel

# The head has its own matrix, sent with every sync: vLLM 0.32 on a CPU does not update a tied one.
UNTIED = {"tie_word_embeddings": False}

ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM's `MaxLoRARanks`

# How weights come to a server, and the name of its engine in vLLM's factory (mathrl/servers/vllm_worker.py).
TRANSFER_BACKENDS = {"nccl": "mathrl_nccl", "ipc": "mathrl_ipc"}

# Set before vllm is imported: no usage statistics, the engine in this process, its threads not bound to one core.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}

COLLECTIVE_SECONDS = 7200  # how long ranks that share an engine wait for each other; NCCL's default is ten minutes


def check_vllm() -> None:
    """Raises UserError: vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            f"rollout.engine needs vLLM, which is not installed: `{install_command('vllm')}` installs it; "
            "or set rollout.engine to torch"
        )


def dtype_name(rollout: Rollout, model: Model) -> str:
    """The type of vLLM's weights: float32, bfloat16 or float16."""
    return model.precision if rollout.vllm.dtype == "auto" else rollout.vllm.dtype


def engine_arguments(folder: str, model: Model, rollout: Rollout, hardware: Hardware) -> dict[str, Any]:
    """The fields of vLLM's `EngineArgs` that every engine of mathrl sets; None leaves vLLM's default.

    Example (a part): {"model": "models/sft", "dtype": "bfloat16", "max_model_len": 1280, "max_num_seqs": 256, …}
    """
    options = rollout.vllm
    cache = options.cache_gib * 2**30 if options.cache_gib and hardware.is_gpu else None
    return {
        "model": folder,
        "trust_remote_code": isinstance(model.base, PretrainedModel) and model.base.trust_remote_code,
        "dtype": dtype_name(rollout, model),
        "seed": 0,
        "tensor_parallel_size": options.tensor_parallel,
        "max_model_len": options.max_model_length,
        "max_num_seqs": rollout.max_sequences,
        "gpu_memory_utilization": options.memory_share,
        "kv_cache_memory_bytes": cache,
        "enforce_eager": not hardware.is_gpu if options.eager is None else options.eager,
        # A seeded request that a batch cuts in two ends vLLM 0.32's engine on a CPU: its generators cannot go back.
        "enable_chunked_prefill": None if hardware.is_gpu else False,
        "hf_overrides": UNTIED,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
    }


def adapter_arguments(lora: Adapters | None) -> dict[str, Any]:
    """The fields of `EngineArgs` by which vLLM takes one adapter of this section's rank; none if it cannot.

    >>> adapter_arguments(Adapters(r=12)), adapter_arguments(Adapters(r=1024)), adapter_arguments(None)
    ({'enable_lora': True, 'max_lora_rank': 16, 'max_loras': 1}, {}, {})
    """
    ranks = [rank for rank in ADAPTER_RANKS if lora is not None and rank >= lora.r]
    return {"enable_lora": True, "max_lora_rank": ranks[0], "max_loras": 1} if ranks else {}


def transfer_arguments(rollout: Rollout, hardware: Hardware) -> dict[str, Any]:
    """The field of `EngineArgs` by which a server receives weights otherwise than as files; none on a CPU.

    Raises:
        UserError: `rollout.servers.weights` asks for a GPU that is not there.

    >>> from mathrl.params.rollout import Servers
    >>> transfer_arguments(Rollout(servers=Servers(weights="auto")), Hardware("cuda"))
    {'weight_transfer_config': {'backend': 'mathrl_nccl'}}
    """
    wanted = rollout.servers.weights
    if hardware.is_gpu:
        backend = TRANSFER_BACKENDS.get("nccl" if wanted == "auto" else wanted)
        return {"weight_transfer_config": {"backend": backend}} if backend else {}
    if wanted in TRANSFER_BACKENDS:
        raise UserError(
            f"rollout.servers.weights is {wanted}, which needs a GPU, but this machine has none: set it to files"
        )
    return {}


def llm_arguments(
    folder: str, model: Model, rollout: Rollout, hardware: Hardware, *, ranks: int, trains: bool
) -> dict[str, Any]:
    """The arguments of `vllm.LLM` for one of `ranks` processes.

    The engine may sleep only beside a model that is trained (`trains`), and on a GPU: the other stages would
    pay for its allocator and never use it.
    """
    return {
        **engine_arguments(folder, model, rollout, hardware),
        "skip_tokenizer_init": rollout.tool.kind == "none",  # else it stops at strings
        "distributed_executor_backend": "external_launcher" if ranks > 1 else None,
        "enable_sleep_mode": rollout.vllm.sleep and hardware.is_gpu and trains,
        "use_tqdm_on_load": False,
        "distributed_timeout_seconds": COLLECTIVE_SECONDS,
        "cpu_distributed_timeout_seconds": COLLECTIVE_SECONDS,
    }


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """The arguments as options of vLLM's server.

    >>> command_line({"max_num_seqs": 8, "enforce_eager": True, "max_model_len": None, "enable_lora": False})
    ['--max-num-seqs', '8', '--enforce-eager', '--no-enable-lora']
    >>> command_line({"hf_overrides": {"a": False}})
    ['--hf-overrides', '{"a": false}']
    """
    words: list[str] = []
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            words += [f"--{option}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words
