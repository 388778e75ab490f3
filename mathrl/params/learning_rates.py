"""Learning rates made for random weights are refused for pretrained ones, which they would destroy in a few steps."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from mathrl.core.errors import UserError
from mathrl.params.run import PretrainedModel
from mathrl.params.schema import Params

TRAINED = {
    "sft": "sft",
    "controls": "sft",
    "rl": "rl",
    "dpo": "dpo",
    "reward_model": "reward_model",
    "process_reward_model": "reward_model",
}
LARGE = 10.0  # billions of parameters


class Rates(NamedTuple):
    """AdamW's learning rates for pretrained models: all weights of a model below LARGE, of a larger one, adapters."""

    small: float
    large: float
    lora: float
    source: str


ADAPTERS = "ten times that of all weights: Schulman et al. 2025, LoRA Without Regret"
RATES = {
    "sft": Rates(1e-5, 2e-6, 1e-4, "verl's SFT trainer; Tulu 3, arXiv:2411.15124, for 70B"),
    "rl": Rates(1e-6, 1e-6, 1e-5, "DeepSeekMath, arXiv:2402.03300, 7B; DAPO, arXiv:2503.14476, 32B; verl, 0.5B"),
    "rl.critic": Rates(1e-5, 1e-5, 1e-4, "verl's PPO examples"),
    "dpo": Rates(5e-7, 2e-7, 5e-6, "Tulu 3, arXiv:2411.15124, 8B and 70B"),
    "reward_model": Rates(1e-5, 5e-6, 1e-4, "InstructGPT, arXiv:2203.02155, appendix C"),
}


def check_learning_rates(params: Params, stages: Iterable[str]) -> None:
    """Raises UserError: one of the stages would train a pretrained model at a default learning rate."""
    wrong = list(dict.fromkeys(line for stage in stages for line in unfit_rates(params, stage)))
    if wrong:
        raise UserError("; ".join(wrong))


def unfit_rates(params: Params, stage: str, recipe: Params | None = None) -> Iterator[str]:
    """A sentence for each learning rate that `stage` would use on a pretrained model although it was made for another.

    Such a rate is the default, or that of a `recipe` (its parameters without a person's overrides) for random weights.
    Any other rate is taken. A rate typed as the default's value counts as the default: a run is what its values are.
    """
    if stage not in TRAINED or not isinstance(params.model.base, PretrainedModel):
        return
    toy = _sections(recipe, stage) if recipe is not None and not isinstance(recipe.model.base, PretrainedModel) else {}
    for path, section in _sections(params, stage).items():
        rates = {other.lr for other in (type(section)(), toy.get(path)) if other is not None}
        if section.lr in rates and (path != "sft" or stage == "controls" or section.steps):
            yield _advice(path, section, params.model.base.path)


def _sections(params: Params, stage: str) -> dict[str, Any]:
    """What a stage trains, by the path of its parameters."""
    sections: dict[str, Any] = {TRAINED[stage]: getattr(params, TRAINED[stage])}
    if TRAINED[stage] == "rl" and params.rl.critic is not None:
        sections["rl.critic"] = params.rl.critic
    return sections


def _advice(path: str, section: Any, model: str) -> str:
    rates, size = RATES[path], billions(model)
    rate = rates.lora if section.lora is not None else rates.large if (size or 0) >= LARGE else rates.small
    kind = "adapters" if section.lora is not None else "all weights"
    billion = f" of {size:g} billion parameters" if size else ""
    muon = "" if section.optimizer.type == "adamw" else f" with {path}.optimizer.type=adamw"
    usual = f"{rate:.0e}".replace("e-0", "e-")
    source = ADAPTERS if section.lora is not None else rates.source
    return (
        f"{path}.lr is {section.lr:g}, made for random weights, and would ruin the pretrained {model}: set "
        f"{path}.lr={usual}{muon}, the usual rate for {kind} of a model{billion} ({source}); any other rate is "
        "taken as it stands"
    )


def billions(model: str) -> float | None:
    """The size that the name of a model tells, in billions of parameters.

    >>> billions("Qwen/Qwen2.5-0.5B-Instruct"), billions("deepseek-math-7b-instruct"), billions("models/mine")
    (0.5, 7.0, None)
    """
    sizes = re.findall(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])", model.lower())
    return float(sizes[-1]) if sizes else None
