"""What follows from an experiment's data, model, method and hardware: values nobody has written, each with its reason.

Lengths come from the data's tokens, learning rates from the model's size, its optimizer and its adapters, and sharding,
micro-batches and the sampler's memory from the memory plan. The same inputs give the same values: nothing is asked of
a hub, a cache or this machine.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from mathrl.compose.fitting import FEWEST_TOKENS, FITTED, MOST_TOKENS, Fit, fit_settings, planned_stages
from mathrl.compose.settings import (
    BACKEND,
    CRITIC,
    ENGINE,
    OFFLOAD_OPTIMIZER,
    PARALLEL,
    PROCESSES,
    PROMPT,
    RESPONSES,
    SEQUENCES,
    SHARE,
    SLEEP,
    TRAINED,
    Derived,
    Trained,
    lengths_as_rl,
    value_at,
    with_values,
)
from mathrl.core.errors import UserError
from mathrl.core.gpus import Hardware
from mathrl.models.shapes import KnownModel, ModelShape, billions, known_shape
from mathrl.params.advantage import Gae
from mathrl.params.optimizer import MUON_TIMES, Adapters, Lora
from mathrl.params.run import PretrainedModel
from mathrl.params.schema import Params
from mathrl.planning.final_values import LONGEST, MORE, SHORTEST, prompt_tokens, response_tokens, round_up, usual_rate
from mathrl.planning.memory_states import Stage

PLAN = "memory plan (docs/how_to/planning.md)"
MUON_SOURCE = "Muon's update is about ten times smaller: Liu et al. 2025, arXiv:2502.16982, equation 4"
DATA = "docs/start/own_data.md"
# Models whose chat template lets them think first; DeepScaleR's first stage gives such a model of 1.5B 8,192 tokens
# (https://github.com/agentica-project/rllm, scripts/deepscaler).
THINKS = re.compile(r"r1-distill|deepseek-r1|thinking|qwq|qwen3-[\d.]+b(?:-a\d+b)?$", re.IGNORECASE)
THINKING_TOKENS = 8192
CHAT = re.compile(r"instruct|chat|-it(?:-|$)", re.IGNORECASE)


@dataclass(frozen=True)
class DataTokens:
    """Tokens of the data's prompts, as the model gets them, and of their worked solutions, if they have any.

    Example: DataTokens(rows=7473, prompts_p95=158, longest_prompt=263, solutions_p95=228)
    """

    rows: int
    prompts_p95: float
    longest_prompt: float
    solutions_p95: float | None = None


def derive(
    params: Params,
    written: Collection[str] = (),
    hardware: Hardware | None = None,
    model: KnownModel | None = None,
    tokens: DataTokens | None = None,
    stages: Collection[str] = FITTED,
    *,
    refuse: bool = True,
) -> list[Derived]:
    """The values that follow, in the order in which they are found: lengths, rates, hardware.

    Args:
        params: With everything that somebody has written; what is derived replaces none of it, and goes by it.
        written: The dotted keys of those values (`mathrl.compose.settings.written_keys`).
        hardware: `count` GPUs of `memory` bytes each, or `count` cores with `memory` bytes together; None: not known.
        model: What is known of the pretrained model (`mathrl.models.shapes.known_model`).
        tokens: The data's, where they were counted.
        stages: That will run; sft without steps does not count.
        refuse: Whether a run that does not fit is an error; else its hardware decides nothing.

    Raises:
        UserError: the run fits the hardware with no setting; the message says what would fit.
    """
    if not isinstance(params.model.base, PretrainedModel):
        return []  # a model of random weights has toy lengths and rates, which its groups write, and fits anywhere
    found = [each for each in _lengths(params, written, model, tokens, hardware) if each.key not in written]
    params = with_values(params, {each.key: each.value for each in found})
    rates = [each for each in _rates(params, model) if each.key not in written]
    params = with_values(params, {each.key: each.value for each in rates})
    planned = planned_stages(params, stages)
    if hardware is None or model is None or not hardware.memory or not planned:
        return found + rates
    fit = fit_settings(params, written, hardware, model.shape, planned)
    if fit is None and not refuse:
        return found + rates
    if fit is None:
        raise too_large(params, written, hardware, model.shape, planned)
    return found + rates + [each for each in _settings(fit, hardware, model) if each.key not in written]


def _lengths(
    params: Params,
    written: Collection[str],
    model: KnownModel | None,
    tokens: DataTokens | None,
    hardware: Hardware | None,
) -> Iterator[Derived]:
    """Of prompts and responses; responses of all stages are as long as those of rl."""
    positions, prompt = model.positions if model else None, params.prompt.max_tokens
    if tokens is not None and PROMPT not in written:
        prompt = prompt_tokens(tokens.longest_prompt, tokens.prompts_p95, positions)
        reason = (
            f"the longest of {tokens.rows:,} prompts has {tokens.longest_prompt:,.0f} tokens, 95 % have at most "
            f"{tokens.prompts_p95:,.0f}"
        )
        yield Derived(PROMPT, prompt, reason, DATA)
    if RESPONSES["rl"] in written:
        yield from lengths_as_rl(params, written)
        return
    response, reason, source = _response(params, tokens, hardware)
    if positions is not None and response > positions - prompt:
        response, source = positions - prompt, source or (model.source if model else "")
        reason = f"{reason or 'by default more'}; the model has {positions:,} positions, a prompt takes {prompt:,}"
    if reason:
        yield from (Derived(key, response, reason, source) for key in RESPONSES.values())


def _response(params: Params, tokens: DataTokens | None, hardware: Hardware | None) -> tuple[int, str, str]:
    """Maximum tokens of a response, why, and where that is from; no reason: nothing is known."""
    assert isinstance(params.model.base, PretrainedModel)
    name, kwargs = params.model.base.path.rstrip("/").rsplit("/", 1)[-1], params.prompt.chat_template_kwargs
    thinks = THINKS.search(name) is not None and kwargs.get("enable_thinking") is not False
    if tokens is None and not thinks:
        return params.rl.max_tokens, "", ""
    chat = params.prompt.template == "chat" or CHAT.search(name) is not None
    longest = LONGEST[hardware.kind if hardware else "cuda"]
    solved = tokens.solutions_p95 if tokens else None
    response = response_tokens(solved, chat=chat, longest=longest)
    if thinks and response < THINKING_TOKENS:
        return THINKING_TOKENS, f"{name} thinks before it answers", "DeepScaleR's first stage, 1.5B"
    if solved is None:
        return response, f"the data have no solutions, and {name} is {'an instruct' if chat else 'a base'} model", DATA
    half = f"95 % of the solutions have at most {solved:,.0f} tokens; half as much again is {MORE * solved:,.0f}"
    if response < MORE * solved:
        return response, f"{half}, and responses get {longest:,} beyond the solutions at most", DATA
    least = f", and {'an instruct' if chat else 'a base'} model gets {response} at least"
    return response, half + (least if response > round_up(MORE * solved) else ""), DATA


def _rates(params: Params, model: KnownModel | None) -> Iterator[Derived]:
    """Learning rates of everything that may train, and AdamW's share of Muon's."""
    assert isinstance(params.model.base, PretrainedModel)
    name = params.model.base.path
    size = model.shape.parameters / 1e9 if model else billions(name)
    width = model.shape.width if model else None
    for path, keys in TRAINED.items():
        if path == CRITIC and not isinstance(params.rl.advantage, Gae):
            continue
        lora, muon = value_at(params, keys.lora) is not None, value_at(params, keys.kind) == "muon"
        rate, source = usual_rate(path, lora, size, width)
        what = f"{size:.3g} billion parameters" if size else f"{name}, of unknown size"
        reason = f"{what}, {'Muon' if muon else 'AdamW'}, {'adapters' if lora else 'all weights'}"
        if rate != usual_rate(path, lora, size, None)[0]:
            reason += f", {width} wide"
        if muon:
            yield Derived(
                keys.scale, 1 / MUON_TIMES, f"AdamW's own rate, {rate:.1g}, for what Muon does not train", source
            )
            rate, source = rate * MUON_TIMES, MUON_SOURCE
        yield Derived(keys.lr, float(f"{rate:.1g}"), reason, source)


def _settings(fit: Fit, hardware: Hardware, model: KnownModel) -> Iterator[Derived]:
    """The values of a fit with the figures that decided."""
    for key, value in fit.values.items():
        yield Derived(key, value, _reason(key, fit, hardware, model), PLAN)
    for key, value in fit.beside.items():
        yield Derived(key, value, f"fits {_size(hardware.memory)}, should a step of a recipe need it", PLAN)


def _reason(key: str, fit: Fit, hardware: Hardware, model: KnownModel) -> str:
    values, params, processes = fit.values, fit.params, fit.params.run.processes
    each = hardware.memory if hardware.is_gpu else hardware.memory / processes
    plan = max(fit.plans.values(), key=lambda plan: plan.peak)
    peak = f"at most {_size(plan.peak)} of {_size(each)} are in use ({plan.largest_phase})"
    if key == PROCESSES:
        if not hardware.is_gpu:
            return f"{hardware.count} cores, {_size(hardware.memory)}: {peak}"
        spare = "" if processes == hardware.count else f" of {hardware.count}, as many as there is work for"
        return f"a process on each of {processes} GPU{'s' * (processes > 1)}{spare}"
    if key in (SEQUENCES, SHARE, SLEEP, PARALLEL, ENGINE):
        return _sampling_reason(key, fit, hardware, model)
    if key == BACKEND or key.startswith("training."):
        if values[BACKEND] == "torch":
            return f"a whole model fits a GPU: {peak}"
        full = f"{model.shape.parameters / 1e9:.3g} billion parameters leave no room on a GPU of {_size(each)}"
        if values.get(OFFLOAD_OPTIMIZER):
            return f"{full} for what is trained; {_size(fit.host)} of CPU memory take it"
        return f"{full} for whole micro-batches, but divided among {processes}: {peak}"
    stage = next(name for name, keys in TRAINED.items() if key in keys)
    own = fit.plans[stage]
    used = f"{_size(own.totals['forward and backward'])} of {_size(each)} in a forward and backward pass"
    if key == TRAINED[stage].checkpointing:
        return used if not fit.values[key] else f"without it more than {_size(each)} are needed; with it {used}"
    most = MOST_TOKENS[hardware.kind]
    return f"{used}; {most:,} at most, {FEWEST_TOKENS[hardware.kind]:,} or a sequence of {_longest(params):,} at least"


def _sampling_reason(key: str, fit: Fit, hardware: Hardware, model: KnownModel) -> str:
    rollout = fit.params.rollout
    if key == ENGINE:
        return f"vLLM's weights and cache leave no room on {_size(hardware.memory)}"
    if key == SEQUENCES:
        rl, processes = fit.params.rl, fit.params.run.processes
        per_process = -(-rl.prompts_per_step // processes) * rl.group_size
        return f"{per_process:,} responses per step and process, of up to {_longest(fit.params):,} tokens"
    if key == SHARE:
        part = _size(rollout.vllm.memory_share * hardware.memory)
        return f"{part} of {_size(hardware.memory)} for weights and the cache of {rollout.max_sequences} responses"
    if key == PARALLEL:
        weights = _size(2 * model.shape.parameters)
        return f"{rollout.vllm.tensor_parallel} GPU(s) hold the sampler's {weights} of weights"
    return "sampler and trainer take turns" if rollout.vllm.sleep else "the sampler works while the trainer does"


def _longest(params: Params) -> int:
    return params.prompt.max_tokens + params.rl.max_tokens


def _size(memory: float) -> str:
    return f"{memory / 1e9:.1f} GB"


def changes(params: Params, derived: Collection[Derived]) -> dict[str, Any]:
    """The derived values that differ from those of the parameters."""
    return {each.key: each.value for each in derived if value_at(params, each.key) != each.value}


GB = 1e9
CARDS = (8, 12, 16, 24, 32, 40, 48, 80, 141, 192)  # GB of cards that are sold or rented
COUNTS = (2, 4, 8, 16, 32, 64)
# Of each size one model, by its name as it is spoken of; the largest that fits is proposed.
MODELS = {
    "0.5B": "Qwen/Qwen2.5-0.5B-Instruct",
    "1B": "meta-llama/Llama-3.2-1B-Instruct",
    "1.5B": "Qwen/Qwen2.5-1.5B-Instruct",
    "3B": "Qwen/Qwen2.5-3B-Instruct",
    "7B": "Qwen/Qwen2.5-7B-Instruct",
    "8B": "meta-llama/Llama-3.1-8B-Instruct",
    "14B": "Qwen/Qwen2.5-14B-Instruct",
    "32B": "Qwen/Qwen2.5-32B-Instruct",
}


def too_large(
    params: Params, written: Collection[str], hardware: Hardware, shape: ModelShape, stages: Sequence[Stage]
) -> UserError:
    """The error of a run that fits with no setting: what it needs most, and what would fit."""
    processes = params.run.processes
    if hardware.is_gpu and PROCESSES in written and processes > hardware.count:
        return UserError(
            f"run.processes is {processes}, and {describe_hardware(hardware)} have {hardware.count}: leave it empty, "
            f"or set it to {hardware.count}"
        )
    remedies = list(dict.fromkeys(_remedies(params, written, hardware, shape, stages)))
    would = f"it would fit with {', or '.join(remedies)}" if remedies else "take a smaller model and more GPUs"
    size = f"{shape.parameters / GB:.3g} billion parameters"
    return UserError(f"{size} with {_trained_words(params, stages)} do not fit {describe_hardware(hardware)}: {would}")


def _remedies(
    params: Params, written: Collection[str], hardware: Hardware, shape: ModelShape, stages: Sequence[Stage]
) -> Iterator[str]:
    """Adapters, shorter responses, more or larger GPUs, a smaller model: each with which the run fits."""

    def fit(on: Hardware, changed: Params = params, size: ModelShape = shape) -> Fit | None:
        # hardware=1x8GB says run.processes too, which more GPUs would change.
        said = written if on.count == hardware.count else set(written) - {PROCESSES}
        return fit_settings(changed, said, on, size, stages)

    def first(machines: Iterable[Hardware], changed: Params = params) -> Iterator[str]:
        found = ((machine, fit(machine, changed)) for machine in machines)
        yield from islice(
            (f"{describe_hardware(machine)}{_offload_words(fit)}" for machine, fit in found if fit is not None), 1
        )

    if not hardware.is_gpu and PROCESSES in written:
        fewer = fit_settings(params, set(written) - {PROCESSES}, hardware, shape, stages)
        if fewer is not None:
            yield f"fewer processes ({PROCESSES}={fewer.params.run.processes})"
    cards = [replace(hardware, memory=int(size * GB)) for size in CARDS if size * GB > hardware.memory]
    cards = cards if hardware.is_gpu else []
    adapted = with_lora(params, stages)
    if adapted != params:
        settings = " ".join(f"{keys.lora}={{}}" for keys in _trained_keys(params, stages))
        if fit(hardware, adapted):
            yield f"LoRA ({settings})"
        else:
            yield from (f"LoRA ({settings}) on {machine}" for machine in first(cards, adapted))
    response = params.rl.max_tokens // 2
    while response >= SHORTEST and RESPONSES["rl"] not in written:
        if fit(hardware, with_values(params, {RESPONSES["rl"]: response})):
            yield f"shorter responses ({RESPONSES['rl']}={response})"
            break
        response //= 2
    if hardware.is_gpu:
        yield from first(replace(hardware, count=count) for count in COUNTS if count > hardware.count)
        yield from first(cards)
        several = [replace(card, count=count) for card in cards for count in COUNTS if count > hardware.count]
        several.sort(key=lambda each: (each.count * each.memory, each.count))
        yield from islice((describe_hardware(each) for each in several if (found := fit(each)) and not found.host), 1)
    smaller = (name for name in reversed(MODELS.values()) if known_shape(name).parameters < shape.parameters)
    model = next((name for name in smaller if fit(hardware, size=known_shape(name))), None)
    if model is not None:
        yield f"a smaller model (model={model})"


def _offload_words(fit: Fit) -> str:
    return f" with {fit.host / GB:.0f} GB of CPU memory" if fit.host else ""


def with_lora(params: Params, stages: Sequence[Stage]) -> Params:
    """The parameters with adapters in everything that the stages train."""
    keys = [keys.lora for keys in _trained_keys(params, stages)]
    return with_values(params, {key: Lora() if key == TRAINED["sft"].lora else Adapters() for key in keys})


def _trained_keys(params: Params, stages: Sequence[Stage]) -> list[Trained]:
    """The keys of what the stages train, without adapters so far."""
    names = [*stages, *([CRITIC] if "rl" in stages and isinstance(params.rl.advantage, Gae) else [])]
    return [TRAINED[name] for name in names if value_at(params, TRAINED[name].lora) is None]


def _trained_words(params: Params, stages: Sequence[Stage]) -> str:
    full = any(getattr(params, stage).lora is None for stage in stages)
    return "all weights trained" if full else "adapters trained (LoRA)"


def describe_hardware(hardware: Hardware) -> str:
    """As a person writes it: 8x80GB."""
    if hardware.is_gpu:
        return f"{hardware.count}x{hardware.memory / GB:g}GB"
    return f"{hardware.count} cores with {hardware.memory / GB:.0f} GB"
