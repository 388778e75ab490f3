"""A policy of a few thousand weights, a reward that it can climb, and runs with them, for conftest.py."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from mathrl.core.metrics import JsonlSink, without_timings
from mathrl.core.types import Problem
from mathrl.grading import Verdict
from mathrl.health.watch import HealthMonitor
from mathrl.learners.distributed import Ranks
from mathrl.models import packing
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.logprobs import prepare_language_model
from mathrl.models.prepared import compute_as
from mathrl.models.small_copy import small_config
from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM
from mathrl.params.optimizer import AdamW
from mathrl.params.paths import merge
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel, Prompt, Reward
from mathrl.params.section import Section
from mathrl.params.train import Rl
from mathrl.params.training import Training
from mathrl.rewards.compose import RewardFunction, RewardInput, RewardResult
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.batch import Batch, make_batch
from mathrl.trainers.open_rl import Helpers
from mathrl.trainers.rl import RlResult, train_rl
from mathrl.trainers.rollouts import RolloutGroup
from mathrl.trainers.scores import score
from mathrl.trainers.training_run import TrainingRun
from tests.conftest import scratch

# Tiny products gain nothing from threads, and lose much where cores are busy.
torch.set_num_threads(1)
S = TypeVar("S", bound=Section)
BASE = FreshModel(hidden_size=32, intermediate_size=48, layers=2, heads=2, kv_heads=1, alphabet="arithmetic")
TOKENIZER = character_tokenizer(BASE)
PROBLEMS = [
    Problem(id=f"p{n}", question=f"{n}+{n}=", answers=(str(2 * n),), source="chain", split="rl", level=n)
    for n in range(1, 9)
]


def fast(lr: float) -> AdamW:
    """AdamW at one rate from the first step on."""
    return AdamW(lr=lr, warmup_steps=0, schedule="constant")


SIZES = {"prompts_per_step": 8, "group_size": 8, "max_tokens": 10, "dev": {"every": 0}}  # from which a policy learns
# For training on pairs.
ON_PAIRS = {"checkpoint_every": 1, "eval_every": 5, "tokens_per_microbatch": 64, "optimizer": fast(1e-2)}


def short_rl(lr: float = 1e-2, **changes: Any) -> Rl:
    """RL with four prompts of four short responses per step, AdamW and raw weights, with `changes`."""
    usual = {
        "prompts_per_step": 4,
        "group_size": 4,
        "max_tokens": 10,
        "dev": {"samples": 1},
        "optimizer": AdamW(lr=lr, warmup_steps=0),
        "ema": None,
        "loss": {"skip_zero_variance": False},
    }
    return Rl(**merge(usual, changes))


def changed(section: S, **changes: Any) -> S:
    """The section with changes, checked by the schema; a mapping changes what it names."""
    return type(section).model_validate(merge(section.model_dump(), changes))


class CountsOnes(RewardFunction):
    """A reward that a random model can climb: the share of the character 1 in the response."""

    def __init__(self, broken: bool = False, right_above: float = 0.04) -> None:
        super().__init__(Reward(exact_share=0.0))  # what is right here is not the problems' answer
        self.broken, self.right_above = broken, right_above

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        shares = [item.response.count("1") / max(1, item.length) for item in items]
        if self.broken:
            shares = [math.nan for _ in shares]
        verdict = Verdict(False, None, "none", "", 0.0)
        return [RewardResult(share, share > self.right_above, {"ones": share}, verdict) for share in shares]


class Killed(Exception):
    """What ends a run as a kill does: nothing after it is done."""


class EndsAfter(JsonlSink):
    def __init__(self, file: Path, last: int, resume_after: int | None) -> None:
        super().__init__(file, resume_after=resume_after)
        self.last = last

    def log(self, step: int, row: Any) -> None:
        if step > self.last:
            raise Killed
        super().log(step, row)


def training_run(
    state: Path, last: int = 10**9, training: Training | None = None, seed: int = 0, health: HealthMonitor | None = None
) -> TrainingRun:
    """A run on the CPU whose metrics are state/metrics.jsonl; it is killed before it logs a step after `last`."""
    ranks = Ranks(torch.device("cpu"), training)
    return TrainingRun(
        ranks, state, seed, lambda resume_after: EndsAfter(state / "metrics.jsonl", last, resume_after), health
    )


def policy(seed: int = 3) -> tuple[Any, Sampler]:
    model = fresh_network(BASE, TOKENIZER, seed=seed).eval()
    return model, Sampler(TorchEngine(model, TOKENIZER, Rollout()), TOKENIZER, Prompt())


def run(
    params: Rl,
    state: Path | None = None,
    last: int = 10**9,
    reward: RewardFunction | None = None,
    problems: Sequence[Problem] = PROBLEMS,
    dev: Sequence[Problem] = (),
    seed: int = 0,
    **helpers: Any,
) -> tuple[RlResult, list[dict[str, float]], Any]:
    """Train; returns the result, the logged rows without timings, and the model."""
    state = state or scratch()
    model, sampler = policy()
    run = training_run(state, last, seed=seed)
    result = train_rl(model, sampler, problems, dev, reward or CountsOnes(), params, run, Helpers(**helpers))
    return result, without_timings(state / "metrics.jsonl"), model


def rollouts(model: Any, sampler: Sampler, samples: int = 4, tokens: int = 10) -> list[RolloutGroup]:
    """Four groups from the policy; those of odd number differ in their rewards."""
    prompts = [tuple(sampler.prompt_tokens(problem) or ()) for problem in PROBLEMS[:4]]
    groups = []
    for number, group in enumerate(sampler.engine.generate(prompts, Sampling(samples, 1.0, tokens), 0)):
        rewards = (1.0, 0.0, 0.5, 0.0) if number % 2 else (1.0,) * 4
        groups.append(
            RolloutGroup(
                problem=number,
                prompt=prompts[number],
                responses=tuple(each.tokens for each in group),
                rewards=rewards[:samples],
                correct=tuple(each == 1 for each in rewards[:samples]),
                logprobs=tuple(each.logprobs for each in group),
                parts=({},) * samples,
                truncated=tuple(each.finish_reason == "length" for each in group),
            )
        )
    return groups


def steps_of_two(groups: list[RolloutGroup]) -> list[RolloutGroup]:
    """A judge: every response is cut in halves, a half with a 1 in it earns 1."""
    one = TOKENIZER.encode("1")[0]
    judged = []
    for group in groups:
        ends, rewards = [], []
        for response in group.responses:
            cuts = sorted({(len(response) - 1) // 2, len(response) - 1})
            starts = [0, *(cut + 1 for cut in cuts[:-1])]
            ends.append(tuple(cuts))
            rewards.append(tuple(float(one in response[a : b + 1]) for a, b in zip(starts, cuts, strict=True)))
        judged.append(replace(group, step_ends=tuple(ends), step_rewards=tuple(rewards)))
    return judged


def scored_batch(
    groups: Sequence[RolloutGroup],
    params: Rl,
    ranks: Ranks,
    model: Any,
    reference: Any = None,
    *,
    kl_coef: float = 0.0,
    **models: Any,
) -> tuple[Batch, dict[str, float]]:
    """The batch of the groups with the scores that the models give, and its figures."""
    return make_batch(groups, params, score(groups, params, ranks, model, reference, **models), kl_coef)


def responses_to_a_long_prompt(monkeypatch: pytest.MonkeyPatch, count: int) -> tuple[Any, list[RolloutGroup]]:
    """A model and groups of two responses, whose prompt counts as long: one kernel alone shares it."""
    monkeypatch.setattr(packing, "LONG", 24)
    model, sampler = policy()
    return model, [replace(rollouts(model, sampler, samples=2)[1], prompt=(4, 5) * 12)] * count


def gpt2() -> Any:
    """GPT-2 has dropout in its embeddings, in its attention and after it."""
    torch.manual_seed(3)
    config = small_config(AutoConfig.for_model("gpt2"))
    config.vocab_size, config.eos_token_id = len(TOKENIZER), TOKENIZER.eos_token_id
    config.attn_pdrop = config.resid_pdrop = config.embd_pdrop = 0.2
    return AutoModelForCausalLM.from_config(config).eval()


def attention_dropout(packed: bool) -> Any:
    """The policy with dropout in its attention alone."""
    model = policy()[0]
    assert prepare_language_model(model).packed
    compute_as(model, replace(prepare_language_model(model), packed=packed))
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.2
    return model


class OnesAndShort(CountsOnes):
    """Two parts, the share of the character 1 and how short the response is; a response with a 1 is right."""

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        results = []
        for item, result in zip(items, super().score(items), strict=True):
            short = 0.05 * (1 - item.length / item.max_length)
            results.append(replace(result, overall=result.overall + short, parts=result.parts | {"short": short}))
        return results


class NonFiniteAtTheSecondStep(OnesAndShort):
    calls = 0

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        self.calls += 1
        results = super().score(items)
        # Calls: step 1, its evaluation, step 2.
        return [replace(r, overall=math.nan) for r in results] if self.calls == 3 else results
