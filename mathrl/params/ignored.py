"""Settings that have no effect beside others, each with the reason."""

from collections.abc import Iterator
from typing import Any

from mathrl.params.advantage import Gae
from mathrl.params.optimizer import Muon
from mathrl.params.run import FreshModel
from mathrl.params.schema import Params
from mathrl.params.section import Section

TRAINING_SECTIONS = ("sft", "rl", "dpo", "reward_model")


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
    for name in TRAINING_SECTIONS:
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


def warnings(params: Params) -> list[str]:
    """Warnings to print before a run starts."""
    return ignored_settings(params)
