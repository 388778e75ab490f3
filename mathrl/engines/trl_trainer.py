"""What the trainers of TRL have in common: mathrl's schedule of the learning rate, and the model that they train."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from mathrl.engines.trl_packages import GRPOTrainer, SFTTrainer
from mathrl.learners.optimizer import schedule
from mathrl.models.load import loading, resolve_folder
from mathrl.models.tool_messages import end_tokens
from mathrl.models.transformers_import import AutoModelForCausalLM
from mathrl.params.optimizer import Optimizer
from mathrl.params.run import Model


class _Scheduled:
    """mathrl's schedule of the learning rate, and no card per checkpoint."""

    schedule: Optimizer
    lr_scheduler: Any
    optimizer: Any

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:
            factor = partial(_factor, self.schedule, num_training_steps)
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, factor)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def create_model_card(self, *arguments: Any, **named: Any) -> None:
        pass


class ScheduledGRPOTrainer(_Scheduled, GRPOTrainer):  # type: ignore[misc]
    """TRL's GRPOTrainer with mathrl's schedule."""


class ScheduledSFTTrainer(_Scheduled, SFTTrainer):  # type: ignore[misc]
    """TRL's SFTTrainer with mathrl's schedule."""


def _factor(optimizer: Optimizer, steps: int, step: int) -> float:
    return schedule(optimizer, step, steps)


def load_for_trl(folder: Path, model: Model, tokenizer: Any) -> Any:
    """The folder's model with float32 weights and its own layers, ending responses where mathrl's sampler does."""
    path, options = resolve_folder(folder, model)
    with loading(folder, "a causal language model", "a Hugging Face folder with config.json and *.safetensors"):
        network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, use_safetensors=True, **options)
    network.generation_config.eos_token_id = end_tokens(tokenizer, network.generation_config)
    return network
