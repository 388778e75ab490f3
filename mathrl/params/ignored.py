"""Settings that have no effect beside others, each with the reason."""

from collections.abc import Iterator
from typing import Any

from mathrl.params.run import FreshModel
from mathrl.params.schema import Params
from mathrl.params.section import Section
from mathrl.params.train import SETS, Optimizer, Rl, Sft

TRAINING_SECTIONS = ("sft", "rl", "dpo", "reward_model")


def ignored_settings(params: Params) -> list[str]:
    """A sentence for each group of settings that differ from their defaults and have no effect.

    Example: ["rl.gamma has no effect: rl.advantage group_std uses no discount (only none, greedy and gae do)"].
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
    yield from _rl(params.rl)
    for name in TRAINING_SECTIONS:
        yield from _optimizer(name, getattr(params, name))
    if params.rl.critic is not None:
        yield from _optimizer("rl.critic", params.rl.critic)
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
    if evaluate.temperature == 0:
        yield from _set(evaluate, "evaluate", "evaluate.temperature 0 is greedy", "top_p")
    if not params.sample.continuations:
        yield from _set(
            params.sample, "sample", "sample.continuations is 0: no step is labelled", "labelled_per_problem"
        )
    grader = params.reward.second_grader
    if grader is not None and grader.type != "llm":
        yield from _set(grader, "reward.second_grader", "only type llm uses an endpoint", "endpoint", "model")


def _rl(rl: Rl) -> Iterator[tuple[str, str]]:
    def idle(reason: str, *names: str) -> Iterator[tuple[str, str]]:
        return _set(rl, "rl", reason, *names)

    if rl.advantage not in ("none", "greedy", "gae"):
        yield from idle(f"rl.advantage {rl.advantage} uses no discount (only none, greedy and gae do)", "gamma")
    if rl.advantage != "gae":
        yield from idle(f"rl.advantage {rl.advantage} uses no critic (only gae does)", "gae_lambda")
    if rl.advantage not in ("group_std", "part_std", "process"):
        reason = f"rl.advantage {rl.advantage} divides by no standard deviation of rewards"
        yield from idle(reason, *(("std_ddof",) if rl.advantage == "pass_at_k" else ("std_ddof", "std_eps")))
    if rl.advantage != "process":
        yield from idle(f"rl.advantage {rl.advantage} takes no scores of steps (only process does)", "step_returns")
    if rl.advantage not in SETS:
        yield from idle(f"rl.advantage {rl.advantage} has no sets (only {' and '.join(SETS)} do)", "k")
    if rl.advantage != "part_std":
        yield from idle(
            f"rl.advantage {rl.advantage} takes the sum of the parts (only part_std does not)", "part_weights"
        )
    if rl.policy_loss in ("reinforce", "sapo"):
        yield from idle(f"rl.policy_loss {rl.policy_loss} has no ratio to clip", "clip_low", "clip_high")
    if rl.policy_loss != "sapo":
        yield from idle(f"rl.policy_loss {rl.policy_loss} has no gate (only sapo has)", "sapo_temperatures")
    if not rl.dynamic_sampling:
        yield from idle("rl.dynamic_sampling is 0: a step has one round", "prompts_per_round")
    if not rl.kl_coef:
        yield from idle("rl.kl_coef is 0: there is no KL term", "kl_estimator", "kl_in")
    else:
        yield from idle("rl.kl_coef is above 0, so the KL is measured on every group", "kl_probe")
    curriculum = rl.curriculum
    for names, orders in (
        (("floor",), ("pass_rate",)),
        (("memory",), ("pass_rate", "pools")),
        (("pools",), ("pools",)),
    ):
        if curriculum.order not in orders:
            users = " and ".join(orders)
            reason = f"rl.curriculum.order is {curriculum.order} (only {users} use{'s' * (len(orders) == 1)} it)"
            yield from _set(curriculum, "rl.curriculum", reason, *names)
    if rl.importance is not None and rl.importance.kind == "truncated":
        reason = "rl.importance.kind truncated has only an upper bound"
        yield from _set(rl.importance, "rl.importance", reason, "low")
    if rl.engine != "verl":
        yield from _set(rl.verl, "rl.verl", f"rl.engine is {rl.engine}")
    if not rl.eval_every:
        yield from idle("rl.eval_every is 0: the only dev evaluation is the last", "export")


def _optimizer(name: str, section: Any) -> Iterator[tuple[str, str]]:
    optimizer: Optimizer = section.optimizer
    default: Optimizer = type(section)().optimizer
    if optimizer.type == "adamw" and optimizer.adamw_scale not in (default.adamw_scale, Optimizer().adamw_scale):
        yield f"{name}.optimizer.adamw_scale", f"{name}.optimizer.type is adamw: {name}.lr is the rate of every weight"
    if optimizer.type == "muon" and section.lora is not None:
        rate = optimizer.adamw_lr(section.lr)
        yield (
            f"{name}.optimizer.type muon",
            f"adapters are trained by AdamW, here at {name}.lr x adamw_scale = {rate:g}; set type adamw to make "
            f"{name}.lr their rate",
        )


def _set(section: Section, path: str, reason: str, *names: str) -> Iterator[tuple[str, str]]:
    """The parameters of a section (all, or those named) that differ from their defaults."""
    for name, info in type(section).model_fields.items():
        default = info.get_default(call_default_factory=True, validated_data={})
        if (not names or name in names) and getattr(section, name) != default:
            yield f"{path}.{name}", reason


def unadapted_rates(params: Params) -> Iterator[str]:
    """Advice where AdamW trains every weight at the default rate, which is Muon's."""
    for name, section, default in (("sft", params.sft, Sft()), ("rl", params.rl, Rl())):
        if section.optimizer.type == "adamw" and section.lr == default.lr and section.steps:
            adamw = default.optimizer.adamw_lr(default.lr)
            yield (
                f"{name}.optimizer.type is adamw, but {name}.lr is {section.lr:g}, the default for Muon; AdamW's "
                f"rate under it is {adamw:g}: set {name}.lr"
            )


def warnings(params: Params) -> list[str]:
    """Warnings to print before a run starts."""
    return [*ignored_settings(params), *unadapted_rates(params)]
