"""The parameters that are derived, by the schema's names, and how values are put into parameters."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mathrl.core.errors import UserError
from mathrl.params.advantage import Gae
from mathrl.params.optimizer import MUON_TIMES
from mathrl.params.paths import leaves
from mathrl.params.run import PretrainedModel
from mathrl.params.schema import SAMPLING, Params
from mathrl.planning.final_values import FRESH, RATES


class Trained(NamedTuple):
    """The parameters of a section that trains: its learning rate, optimizer and adapters, and its micro-batches.

    `checkpointing` and `microbatch` are empty where a section has none of its own.
    """

    lr: str
    kind: str
    scale: str
    lora: str
    microbatch: str = ""
    checkpointing: str = ""


def _trained_keys(section: str, *own: str) -> Trained:
    keys = ("optimizer.lr", "optimizer.type", "optimizer.adamw_scale", "lora", *own)
    return Trained(*(f"{section}.{key}" for key in keys))


# Every parameter that is derived stands here, once.
PROMPT = "prompt.max_tokens"
CRITIC = "rl.advantage.critic"
RESPONSES = {stage: f"{stage}.max_tokens" for stage in SAMPLING}
TRAINED = {
    "sft": _trained_keys("sft", "tokens_per_microbatch", "gradient_checkpointing"),
    "rl": _trained_keys("rl", "tokens_per_microbatch", "gradient_checkpointing"),
    CRITIC: _trained_keys(CRITIC),
    "dpo": _trained_keys("dpo", "tokens_per_microbatch"),
    "reward_model": _trained_keys("reward_model", "tokens_per_microbatch"),
}
NAME = "register.name"
PROCESSES = "run.processes"
BACKEND = "training.backend"
STAGE, OFFLOAD_OPTIMIZER, OFFLOAD_PARAMETERS = (
    f"training.deepspeed.{key}" for key in ("stage", "offload_optimizer", "offload_parameters")
)
ENGINE, SEQUENCES = "rollout.engine", "rollout.max_sequences"
SHARE, SLEEP, PARALLEL = (f"rollout.vllm.{key}" for key in ("memory_share", "sleep", "tensor_parallel"))


@dataclass(frozen=True)
class Derived:
    """A value that follows from the rest of an experiment, and why.

    Example: Derived("rl.optimizer.lr", 1e-6, "0.494 billion parameters, AdamW, all weights", "DeepSeekMath")
    """

    key: str
    value: Any
    reason: str
    source: str


def with_values(params: Params, values: Mapping[str, Any]) -> Params:
    """The parameters with other values of dotted keys, which are taken as they are."""
    for key, value in values.items():
        params = _set(params, _names(key), value)
    return params


def _names(key: str) -> list[str]:
    first, *rest = key.split(".")
    return [f"{first}_" if first == "register" else first, *rest]  # `register` is a method of pydantic's models


def _set(section: Any, names: list[str], value: Any) -> Any:
    first, *rest = names
    return section.model_copy(update={first: _set(getattr(section, first), rest, value) if rest else value})


def value_at(params: Params, key: str) -> Any:
    """The value of a dotted key.

    Raises:
        UserError: a section on the way is null, or of a type without it.
    """
    value: Any = params
    for name in _names(key):
        if not hasattr(value, name):
            raise UserError(f"{key}: nothing has it here")
        value = getattr(value, name)
    return value


def written_keys(values: Mapping[str, Any]) -> Iterator[str]:
    """The dotted keys of all single values; a mapping counts by what it has.

    >>> sorted(written_keys({"rl": {"optimizer": {"type": "adamw"}, "lora": None, "critic": {}}}))
    ['rl.lora', 'rl.optimizer.type']
    """
    return (key for key, value in leaves(values) if not isinstance(value, Mapping))


def lengths_as_rl(params: Params, written: Collection[str]) -> Iterator[Derived]:
    """The length of all responses that nobody wrote one of, where somebody wrote that of RL's."""
    if RESPONSES["rl"] in written:
        for key in RESPONSES.values():
            if key not in written:
                yield Derived(key, params.rl.max_tokens, f"as {RESPONSES['rl']}, which is written", "")


def fresh_rates(params: Params, written: Collection[str]) -> Iterator[Derived]:
    """The learning rates that nobody wrote, of random weights: no default of a pretrained model."""
    for path, keys in TRAINED.items():
        if keys.lr in written or (path == CRITIC and not isinstance(params.rl.advantage, Gae)):
            continue
        rate, reason = RATES[path].fresh, "random weights, AdamW"
        if value_at(params, keys.kind) == "muon":
            reason = f"random weights, Muon: {MUON_TIMES:g} x AdamW's {rate:g}"
            rate = float(f"{rate * MUON_TIMES:.12g}")
        yield Derived(keys.lr, rate, reason, FRESH)


def registered_name(params: Params, written: Collection[str]) -> Iterator[Derived]:
    """The name under which the model is registered, where nobody wrote one: what it is and what it learned from.

    Example: qwen2.5-0.5b-gsm8k; mathrl-chain of random weights.
    """
    if NAME in written:
        return
    base = params.model.base
    model = base.path.rstrip("/").rpartition("/")[2].lower() if isinstance(base, PretrainedModel) else "mathrl"
    learned = [source.name for source in params.curate.sources if source.fills("rl")]
    name = re.sub(r"[/:@'\"]+", "-", "-".join(dict.fromkeys([model, *learned])))
    yield Derived(NAME, name, "the model and the problems that it learns from", "")


def left_open(values: Mapping[str, Any], written: Collection[str]) -> dict[str, Any]:
    """Those of the values that nobody has written."""
    return {key: value for key, value in values.items() if key not in written}
