"""The sampler of a stage that samples a model's folder and trains nothing."""

from collections.abc import Sequence
from pathlib import Path

from mathrl.core.types import Problem
from mathrl.models.device import choose_device
from mathrl.params import Params
from mathrl.rollout.choices import stage_longest
from mathrl.rollout.open_engine import open_engine
from mathrl.rollout.sampler import Sampler


def open_sampler(folder: Path | str, params: Params, stage: str, few_shot: Sequence[Problem] = ()) -> Sampler:
    """The model of `folder` with the engine and the prompt that `params` name, for sequences as long as the stage's.

    Raises:
        UserError: as `open_engine`.
    """
    device, longest = choose_device(params.run.device), stage_longest(params, stage)
    engine, tokenizer = open_engine(folder, params.model, params.rollout, device, longest)
    return Sampler(engine, tokenizer, params.prompt, few_shot)
