"""Open the engine that `rollout.engine` names: for a model folder, or for a model in training."""

import copy
from itertools import count
from pathlib import Path
from typing import Any

import torch

from mathrl.core.launch import from_rank_0
from mathrl.models.load import load_model, load_tokenizer
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model
from mathrl.rollout.engine import RolloutEngine, canary_tolerance, dtype_name, end_tokens
from mathrl.rollout.server_engine import ServerEngine
from mathrl.rollout.torch_engine import CopyEngine, TorchEngine
from mathrl.rollout.vllm_engine import generation_config, local_folder, open_vllm

_openings = count()


def open_engine(
    model_folder: Path | str, model: Model, rollout: Rollout, device: torch.device | str
) -> tuple[RolloutEngine, Any]:
    """The engine with the folder's weights, and the folder's tokenizer.

    Raises:
        UserError: the folder is not a model, its tokenizer has no end token, or the engine is not available.
    """
    tokenizer = load_tokenizer(model_folder, model)
    if rollout.engine == "torch":
        return TorchEngine(load_model(model_folder, model, device), tokenizer, rollout), tokenizer
    if rollout.engine == "vllm":
        return open_vllm(model_folder, tokenizer, model, rollout), tokenizer
    folder = local_folder(model_folder)
    engine = _servers(tokenizer, generation_config(folder), model, rollout)
    # Once for all ranks: they share the servers, and rank 0 comes here only when all have finished with older weights.
    sync_message = from_rank_0(lambda: engine.sync_folder(folder), f"weights.{next(_openings)}")
    engine.follow(sync_message)
    return engine, tokenizer


def training_engine(
    network: Any, model_folder: Path | str, tokenizer: Any, model: Model, rollout: Rollout, ahead: bool
) -> RolloutEngine:
    """The engine that samples for the trainer of `network`, whose weights are those of the folder at first.

    With `ahead` it samples while the network is updated, so it has weights of its own.

    Raises:
        UserError: the engine is not available, or cannot run the model.
    """
    if rollout.engine == "torch":
        if ahead:
            tolerance = canary_tolerance(rollout, model, model.precision)
            dtype = getattr(torch, model.precision)
            return CopyEngine(copy.deepcopy(network), tokenizer, rollout, tolerance, dtype)
        return TorchEngine(network, tokenizer, rollout)
    if rollout.engine == "vllm":
        return open_vllm(model_folder, tokenizer, model, rollout)
    return _servers(tokenizer, getattr(network, "generation_config", None), model, rollout)


def _servers(tokenizer: Any, config: Any, model: Model, rollout: Rollout) -> ServerEngine:
    ends, dtype = end_tokens(tokenizer, config), dtype_name(rollout, model)
    return ServerEngine(tokenizer, ends, rollout, dtype, canary_tolerance(rollout, model, dtype))
