"""An engine for a model folder."""

from pathlib import Path
from typing import Any

import torch

from mathrl.models.load import load_model, load_tokenizer
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model
from mathrl.rollout.engine import RolloutEngine
from mathrl.rollout.torch_engine import TorchEngine


def open_engine(
    model_folder: Path | str, model: Model, rollout: Rollout, device: torch.device | str
) -> tuple[RolloutEngine, Any]:
    """The engine that `rollout.engine` names, with the folder's weights, and the folder's tokenizer.

    Raises:
        UserError: the folder is not a model, or its tokenizer has no end token.
    """
    tokenizer = load_tokenizer(model_folder)
    network = load_model(model_folder, model, device)
    return TorchEngine(network, tokenizer, rollout), tokenizer
