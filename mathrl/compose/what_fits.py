"""What would fit, where a run does not fit its hardware; each remedy has been tried with the memory plan."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from mathrl.compose.fitting import Fit, fitted
from mathrl.compose.settings import CRITIC, PROCESSES, RESPONSES, TRAINED, Trained, value_at, with_values
from mathrl.core.errors import UserError
from mathrl.core.hardware import Hardware
from mathrl.models.shapes import ModelShape, known_shape
from mathrl.params.advantage import Gae
from mathrl.params.final_values import SHORTEST
from mathrl.params.lora import Adapters, Lora
from mathrl.params.schema import Params
from mathrl.planning.memory_states import Stage

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
            f"run.processes is {processes}, and {spoken(hardware)} have {hardware.count}: leave it empty, or set "
            f"it to {hardware.count}"
        )
    remedies = list(dict.fromkeys(_remedies(params, written, hardware, shape, stages)))
    would = f"it would fit with {', or '.join(remedies)}" if remedies else "take a smaller model and more GPUs"
    size = f"{shape.parameters / GB:.3g} billion parameters"
    return UserError(f"{size} with {_trained(params, stages)} do not fit {spoken(hardware)}: {would}")


def _remedies(
    params: Params, written: Collection[str], hardware: Hardware, shape: ModelShape, stages: Sequence[Stage]
) -> Iterator[str]:
    """Adapters, shorter responses, more or larger GPUs, a smaller model: each with which the run fits."""

    def fit(on: Hardware, changed: Params = params, size: ModelShape = shape) -> Fit | None:
        # hardware=1x8GB says run.processes too, which more GPUs would change.
        said = written if on.count == hardware.count else set(written) - {PROCESSES}
        return fitted(changed, said, on, size, stages)

    def first(machines: Iterable[Hardware], changed: Params = params) -> Iterator[str]:
        found = ((machine, fit(machine, changed)) for machine in machines)
        yield from islice((f"{spoken(machine)}{_offloaded(fit)}" for machine, fit in found if fit is not None), 1)

    if not hardware.is_gpu and PROCESSES in written:
        fewer = fitted(params, set(written) - {PROCESSES}, hardware, shape, stages)
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
        yield from islice((spoken(each) for each in several if (found := fit(each)) and not found.host), 1)
    smaller = (name for name in reversed(MODELS.values()) if known_shape(name).parameters < shape.parameters)
    model = next((name for name in smaller if fit(hardware, size=known_shape(name))), None)
    if model is not None:
        yield f"a smaller model (model={model})"


def _offloaded(fit: Fit) -> str:
    return f" with {fit.host / GB:.0f} GB of CPU memory" if fit.host else ""


def with_lora(params: Params, stages: Sequence[Stage]) -> Params:
    """The parameters with adapters in everything that the stages train."""
    keys = [keys.lora for keys in _trained_keys(params, stages)]
    return with_values(params, {key: Lora() if key == TRAINED["sft"].lora else Adapters() for key in keys})


def _trained_keys(params: Params, stages: Sequence[Stage]) -> list[Trained]:
    """The keys of what the stages train, without adapters so far."""
    names = [*stages, *([CRITIC] if "rl" in stages and isinstance(params.rl.advantage, Gae) else [])]
    return [TRAINED[name] for name in names if value_at(params, TRAINED[name].lora) is None]


def _trained(params: Params, stages: Sequence[Stage]) -> str:
    full = any(getattr(params, stage).lora is None for stage in stages)
    return "all weights trained" if full else "adapters trained (LoRA)"


def spoken(hardware: Hardware) -> str:
    """As a person writes it: 8x80GB."""
    if hardware.is_gpu:
        return f"{hardware.count}x{hardware.memory / GB:g}GB"
    return f"{hardware.count} cores with {hardware.memory / GB:.0f} GB"
