"""Open the engine that `rollout.engine` names: for a model folder, or for a model in training."""

from pathlib import Path
from typing import Any

import torch

from mathrl.core.environment import world_size
from mathrl.core.errors import UserError
from mathrl.models.device import Device, hardware_of
from mathrl.models.load import load_model, load_tokenizer, local_folder
from mathrl.models.prepared import copy_model
from mathrl.models.sharding import is_sharded
from mathrl.models.tool_messages import end_tokens
from mathrl.params.optimizer import Adapters
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model
from mathrl.rollout.engine import RolloutEngine, canary_tolerance
from mathrl.rollout.ranks import from_rank_0
from mathrl.rollout.resolve import resolve_rollout
from mathrl.rollout.server_engine import ServerEngine
from mathrl.rollout.torch_engine import CopyEngine, TorchEngine
from mathrl.rollout.vllm_engine import generation_config, open_vllm
from mathrl.servers.serve import StartedServers, start_servers
from mathrl.servers.server_pool import ServerPool
from mathrl.servers.vllm_arguments import dtype_name


def open_engine(
    model_folder: Path | str, model: Model, rollout: Rollout, device: Device, longest: int | None = None
) -> tuple[RolloutEngine, Any]:
    """The engine with the folder's weights, and the folder's tokenizer.

    `longest` bounds a prompt with its response (see `longest_sequence`); None: the model's limit. The engine's own
    `rollout` says what was chosen where the section leaves it open.

    Raises:
        UserError: the folder is not a model, its tokenizer has no end token, or the engine is not available.
    """
    tokenizer = load_tokenizer(model_folder, model)
    hardware = hardware_of(device)
    rollout = resolve_rollout(rollout, model_folder, model, hardware, longest=longest, ranks=world_size())
    if rollout.engine == "torch":
        return TorchEngine(load_model(model_folder, model, device), tokenizer, rollout), tokenizer
    if rollout.engine == "vllm":
        return open_vllm(model_folder, tokenizer, model, rollout), tokenizer
    folder = local_folder(model_folder)
    engine = _engine(_pool(folder, model, rollout), tokenizer, generation_config(folder), model, rollout)
    # Once for all ranks: they share the servers, and rank 0 comes here only when all have finished with older weights.
    engine.follow(from_rank_0(lambda: engine.sync_folder(folder)))
    return engine, tokenizer


def training_engine(
    network: Any,
    model_folder: Path | str,
    tokenizer: Any,
    model: Model,
    rollout: Rollout,
    ahead: bool,
    lora: Adapters | None = None,
) -> RolloutEngine:
    """The engine that samples for the trainer of `network`, whose weights are those of the folder at first.

    `lora` are the adapters that the network will have. With `ahead` it samples while the network is updated, so it has
    weights of its own. `rollout` is resolved (`resolve_rollout`); an engine that it leaves open is the torch engine.

    Raises:
        UserError: the engine is not available, or cannot run the model.
    """
    if rollout.engine in ("auto", "torch"):
        if ahead:
            tolerance = canary_tolerance(rollout, model, model.precision)
            dtype = getattr(torch, model.precision)
            if is_sharded(network):
                sampled = load_model(model_folder, model, network.device, plain=True)
            else:
                sampled = copy_model(network)
            return CopyEngine(sampled, tokenizer, rollout, tolerance, dtype)
        return TorchEngine(network, tokenizer, rollout)
    if rollout.engine == "vllm":
        engine = open_vllm(model_folder, tokenizer, model, rollout, trains=True)
        # vLLM runs some architectures by transformers' classes, whose calls it replaces in the whole process.
        trunk = type(network.get_decoder())
        if str(trunk.__call__.__module__).startswith("vllm."):
            raise UserError(
                f"vLLM changes {trunk.__name__} of transformers in this process, so that the trainer's model no longer "
                "runs: set rollout.engine to vllm_server or torch"
            )
        return engine
    pool = _pool(model_folder, model, rollout, lora)
    return _engine(pool, tokenizer, network.generation_config, model, rollout, network)


def _engine(
    pool: ServerPool, tokenizer: Any, config: Any, model: Model, rollout: Rollout, network: Any = None
) -> ServerEngine:
    ends, dtype = end_tokens(tokenizer, config), dtype_name(rollout, model)
    return ServerEngine(tokenizer, ends, rollout, dtype, canary_tolerance(rollout, model, dtype), pool, network)


def _pool(folder: Path | str, model: Model, rollout: Rollout, lora: Adapters | None = None) -> ServerPool:
    """The servers that the section names, or those that rank 0 starts and watches for every rank."""
    if not rollout.servers.start:
        return ServerPool(rollout.servers)
    started: list[StartedServers] = []

    def start() -> list[str]:
        started.append(start_servers(folder, model, rollout, lora))
        return started[0].urls

    urls = from_rank_0(start)
    return ServerPool(rollout.servers, urls, started[0].check) if started else ServerPool(rollout.servers, urls)
