"""One judgement of the final values that a step would use on a pretrained model: its learning rates and its lengths.

A rate of 30 times the usual one for the model, the optimizer and the adapters, or more, is refused, and so is a length
that cuts off what problems and answers need; data/lengths.py holds it against the data's own. Whatever a person typed
for this very run (--set, a form) is taken, with a warning. The dry run, the flow and the stage ask this one function,
whoever wrote the values: a file, preset or recipe.
"""

from collections.abc import Iterable, Iterator
from math import ceil
from typing import Any, NamedTuple

from mathrl.core.errors import UserError
from mathrl.models.shapes import billions, positions_of, width_of
from mathrl.params.advantage import Gae
from mathrl.params.load import typed_keys
from mathrl.params.messages import Doubt
from mathrl.params.optimizer import MUON_TIMES, Muon
from mathrl.params.run import FreshModel, PretrainedModel
from mathrl.params.schema import SAMPLING, Params
from mathrl.params.section import Section

TRAINED = {name: name for name in ("sft", "rl", "dpo", "reward_model")} | {"process_reward_model": "reward_model"}
LARGE = 10.0  # billions of parameters
TIMES = 30.0  # a rate this far above the usual one is refused
PUBLISHED_WIDTH = 896  # of the smallest models that the rates were published for
SHORTEST = 128  # tokens of a prompt or a response; GSM8K's solutions take 50 to 300, its questions 30 to 200
LONGEST_PROMPT = 2048  # in tokens, unless more than a twentieth of the prompts are longer
LONGEST = {"cpu": 512, "cuda": 4096}  # of a response, in tokens, unless the solutions are longer
CHAT, PLAIN = 512, 256  # of a response where the data have no solutions: of an instruct model and of another
MORE = 1.5  # times nearly all solutions


class Rates(NamedTuple):
    """AdamW's learning rates: of pretrained models, all weights of a model below LARGE, of a larger one, adapters; and
    of random weights."""

    small: float
    large: float
    lora: float
    source: str
    fresh: float


FRESH = "the demo's models of half a million weights learn at it (docs/explanation/study.md)"
ADAPTERS = "ten times that of all weights: Schulman et al. 2025, LoRA Without Regret"
RATES = {
    "sft": Rates(1e-5, 2e-6, 1e-4, "verl's SFT trainer; Tulu 3, arXiv:2411.15124, for 70B", 3e-3),
    "rl": Rates(1e-6, 1e-6, 1e-5, "DeepSeekMath, arXiv:2402.03300, 7B; DAPO, arXiv:2503.14476, 32B; verl, 0.5B", 5e-4),
    "rl.advantage.critic": Rates(1e-5, 1e-5, 1e-4, "verl's PPO examples", 1e-3),
    "dpo": Rates(5e-7, 2e-7, 5e-6, "Tulu 3, arXiv:2411.15124, 8B and 70B", 2e-4),
    "reward_model": Rates(1e-5, 5e-6, 1e-4, "InstructGPT, arXiv:2203.02155, appendix C", 1e-3),
}
# The parameters that are judged.
JUDGED = (
    *(f"{section}.optimizer.lr" for section in RATES),
    *(f"{stage}.max_tokens" for stage in SAMPLING),
    "prompt.max_tokens",
)

NOTHING_TAUGHT = (
    "it learns from the split sft, and nothing fills that: set curate.sft_share=0.25 (as method=sft-grpo does) if the "
    "data have worked solutions, or write a source with split: sft"
)


def check_final_values(params: Params, stages: Iterable[str], typed: Iterable[str] = ()) -> list[str]:
    """Warnings about values that were typed for this run: `typed` are a person's overrides ["rl.optimizer.lr=0.02"].

    Raises:
        UserError: a value that does not suit the pretrained model, and that nobody typed for this run; or SFT of a
            pipeline that has nothing to learn from.
    """
    stages = list(stages)
    refused, warned = judge(params, stages, typed)
    if {"curate", "sft"} <= {*stages} and params.sft.steps and not params.curate.fills("sft"):
        refused.append(f"sft.steps is {params.sft.steps}: {NOTHING_TAUGHT}")
    if refused:
        raise UserError("; ".join(refused))
    return warned


def judge(params: Params, stages: Iterable[str], typed: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """A sentence per value that is refused, and one per value that is taken because a person typed it."""
    return verdict(doubts_of(params, stages), typed)


def doubts_of(params: Params, stages: Iterable[str]) -> list[Doubt]:
    """The values that do not suit the pretrained model, whoever wrote them."""
    return list(dict.fromkeys(doubt for stage in stages for doubt in _doubts(params, stage)))


def verdict(doubts: Iterable[Doubt], typed: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """As `judge`, of doubts that the caller has."""
    keys, doubts = typed_keys(typed), list(doubts)
    refused = [
        f"{doubt.problem}: {doubt.advice}; to run with it all the same, type it for this run: --set "
        f"{doubt.key}={doubt.value}"
        for doubt in doubts
        if doubt.key not in keys
    ]
    return refused, [f"{doubt.problem}; taken, since it was typed" for doubt in doubts if doubt.key in keys]


def trained_values(params: Params, stage: str) -> str:
    """The judged values of a stage in one line: "sft.optimizer.lr 1e-05 (adamw)"; empty for a stage that has none."""
    words = [
        f"{path}.optimizer.lr {section.optimizer.lr:g} ({section.optimizer.type}{', LoRA' if section.lora else ''})"
        for path, section in _sections(params, stage).items()
    ]
    if stage in SAMPLING:
        words.append(f"{stage}.max_tokens {getattr(params, stage).max_tokens}")
        words.append(f"prompt.max_tokens {params.prompt.max_tokens}")
    return ", ".join(words)


def width_factor(width: float | None) -> float:
    """How much higher the usual rate of a narrow model is: AdamW's rate for a matrix goes with one over its width.

    (Yang et al., arXiv:2203.03466, table 3.)
    """
    return max(1.0, PUBLISHED_WIDTH / width) if width else 1.0


def usual_rate(path: str, lora: bool, size: float | None, width: float | None) -> tuple[float, str]:
    """AdamW's usual learning rate for a section of RATES, and where it is from; Muon's is MUON times as high.

    Args:
        lora: Whether adapters are trained. `size`: in billions of parameters, None: below LARGE.
        width: Of the model, None: at least PUBLISHED_WIDTH.

    >>> usual_rate("rl", False, 7.0, 3584)[0], usual_rate("sft", True, 0.5, 896)[0]
    (1e-06, 0.0001)
    """
    rates = RATES[path]
    rate = rates.lora if lora else rates.large if (size or 0) >= LARGE else rates.small
    return rate * width_factor(width), ADAPTERS if lora else rates.source


def _doubts(params: Params, stage: str) -> Iterator[Doubt]:
    if stage not in TRAINED and stage not in SAMPLING:  # other stages may not read the section model
        return
    base = params.model.base
    if not isinstance(base, PretrainedModel):
        return
    for path, section in _sections(params, stage).items():
        yield from _rate_doubts(path, section, base.path)
    if stage in SAMPLING:
        positions = positions_of(base.path)
        shortest = min(SHORTEST, positions // 4) if positions else SHORTEST
        lengths = {
            f"{stage}.max_tokens": getattr(params, stage).max_tokens,
            "prompt.max_tokens": params.prompt.max_tokens,
        }
        yield from (_length_doubt(key, tokens, base.path) for key, tokens in lengths.items() if tokens < shortest)


def _sections(params: Params, stage: str) -> dict[str, Any]:
    """What a stage trains, by the path of its parameters."""
    if stage not in TRAINED or (stage == "sft" and not params.sft.steps):
        return {}
    sections: dict[str, Any] = {TRAINED[stage]: getattr(params, TRAINED[stage])}
    if TRAINED[stage] == "rl" and isinstance(params.rl.advantage, Gae):
        sections["rl.advantage.critic"] = params.rl.advantage.critic
    return sections


def _rate_doubts(path: str, section: Any, model: str) -> Iterator[Doubt]:
    size, lora = billions(model), section.lora is not None
    rate, source = usual_rate(path, lora, size, width_of(model))
    key, optimizer = f"{path}.optimizer.lr", section.optimizer
    muon = isinstance(optimizer, Muon)
    used = [("AdamW", f"{key} x adamw_scale" if muon else key, optimizer.adamw_lr, rate)]
    if muon and not lora:  # adapters are AdamW's
        used.insert(0, ("Muon", key, optimizer.lr, rate * MUON_TIMES))
    far = [item for item in used if item[2] >= item[3] * TIMES * (1 - 1e-9)]
    if not far:
        return
    name, what, lr, usual = far[0]
    kind = "adapters" if section.lora is not None else "all weights"
    billion = f" of {size:g} billion parameters" if size else ""
    yield Doubt(
        key,
        f"{what} is {lr:g}, {lr / usual:,.0f} times {name}'s usual rate for {kind} of a pretrained model"
        f"{billion}, and would ruin {model}",
        f"set {f'{path}.optimizer.type=adamw and ' * muon}{key}={_rate_text(rate)} ({source})",
        f"{optimizer.lr:g}",
    )


def _length_doubt(key: str, tokens: int, model: str) -> Doubt:
    what = "prompts are dropped" if key.startswith("prompt.") else "responses are cut off before their answer"
    return Doubt(
        key,
        f"{key} is {tokens}, too short for the pretrained {model}: longer {what}",
        f"set {key}=512 or what your data need (`mathrl inspect` counts them), at least {SHORTEST}",
        str(tokens),
    )


def _rate_text(rate: float) -> str:
    """
    >>> _rate_text(1e-6), _rate_text(5e-7)
    ('1e-6', '5e-7')
    """
    return f"{rate:.0e}".replace("e-0", "e-")


def ignored_settings(params: Params) -> list[str]:
    """A sentence for each group of settings that differ from their defaults and have no effect.

    Example: ["evaluate.top_p has no effect: evaluate.temperature 0 is greedy"].
    """
    groups: dict[str, list[str]] = {}
    for key, reason in _idle(params):
        groups.setdefault(reason, []).append(key)
    return [
        f"{', '.join(keys)} {'has' if len(keys) == 1 else 'have'} no effect: {reason}"
        for reason, keys in groups.items()
    ]


def _idle(params: Params) -> Iterator[tuple[str, str]]:
    """Settings without effect that differ from their defaults, with the reason."""
    if not params.rl.dev.every:
        yield from _set(params.rl.dev, "rl.dev", "rl.dev.every is 0: the only dev evaluation is the last", "export")
    for name in dict.fromkeys(TRAINED.values()):
        yield from _lora_beside_muon(name, getattr(params, name))
    if isinstance(params.rl.advantage, Gae):
        yield from _lora_beside_muon("rl.advantage.critic", params.rl.advantage.critic)
    base = params.model.base
    if isinstance(base, FreshModel) and base.tokenizer is not None:
        yield from _set(base, "model.base", "model.base.tokenizer is trained on texts", "alphabet")
    engine, training, prompt, evaluate = params.rollout.engine, params.training, params.prompt, params.evaluate
    if engine == "torch":
        yield from _set(params.rollout.vllm, "rollout.vllm", "rollout.engine is torch")
    if engine != "vllm_server":
        yield from _set(params.rollout.servers, "rollout.servers", f"rollout.engine is {engine}")
    if training.backend != "deepspeed":
        yield from _set(training.deepspeed, "training.deepspeed", f"training.backend is {training.backend}")
    if training.backend != "fsdp":
        yield from _set(training.fsdp, "training.fsdp", f"training.backend is {training.backend}")
    templates = {prompt.template, *(route.template for route in prompt.routes.values())}
    if prompt.system and "chat" not in templates:
        yield "prompt.system", f"prompt.template {prompt.template} has no system message (only chat has)"
    if prompt.tools != "none" and "chat" not in templates:
        yield "prompt.tools", f"prompt.template {prompt.template} is no chat template"
    if params.rollout.tool.kind == "none":
        yield from _set(params.rollout.turns, "rollout.turns", "rollout.tool is none")
    if prompt.chat_template_kwargs and "chat" not in templates:
        yield "prompt.chat_template_kwargs", f"prompt.template {prompt.template} is no chat template"
    if evaluate.temperature == 0 and evaluate.top_p < 1:
        yield from _set(evaluate, "evaluate", "evaluate.temperature 0 is greedy", "top_p")
    if not params.sample.continuations:
        yield from _set(
            params.sample, "sample", "sample.continuations is 0: no step is labelled", "labelled_per_problem"
        )
    grader = params.reward.second_grader
    if grader is not None and grader.type != "llm":
        yield from _set(grader, "reward.second_grader", "only type llm uses an endpoint", "endpoint", "model")


def _lora_beside_muon(name: str, section: Any) -> Iterator[tuple[str, str]]:
    if isinstance(section.optimizer, Muon) and section.lora is not None:
        yield (
            f"{name}.optimizer.type muon",
            f"adapters are trained by AdamW, here at lr x adamw_scale = {section.optimizer.adamw_lr:g}; set "
            f"{name}.optimizer=adamw",
        )


def _set(section: Section, path: str, reason: str, *names: str) -> Iterator[tuple[str, str]]:
    """The parameters of a section (all, or those named) that differ from their defaults."""
    for name, info in type(section).model_fields.items():
        default = info.get_default(call_default_factory=True, validated_data={})
        if (not names or name in names) and getattr(section, name) != default:
            yield f"{path}.{name}", reason


def prompt_tokens(longest: float, p95: float, positions: int | None) -> int:
    """The longest prompt, at most LONGEST_PROMPT or the 95th percentile, and half of the model's positions.

    >>> prompt_tokens(longest=300, p95=210, positions=4096), prompt_tokens(longest=9000, p95=3000, positions=4096)
    (320, 2048)
    """
    most = max(LONGEST_PROMPT, round_up(p95))
    tokens = min(max(SHORTEST, round_up(longest)), most)
    return tokens if positions is None else min(tokens, positions // 2)


def response_tokens(solutions_p95: float | None, *, chat: bool, longest: int) -> int:
    """Room for a response: half as much again as nearly all solutions take; without solutions what is usual.

    `longest` limits the half, never the solutions: `mathrl.data.lengths` refuses a length that cuts them off.

    >>> response_tokens(300, chat=False, longest=4096), response_tokens(None, chat=True, longest=4096)
    (480, 512)
    """
    usual = CHAT if chat else PLAIN
    if solutions_p95 is None:
        return usual
    return max(round_up(solutions_p95), min(longest, max(usual if chat else SHORTEST, round_up(MORE * solutions_p95))))


def round_up(tokens: float) -> int:
    """Up to the next multiple of 32."""
    return 32 * max(1, ceil(tokens / 32))
