"""The plan of a micro-batch on a GPU against a count of every tensor that it allocates, at presets' shapes.

All layers are there: tensors on the meta device have no values, so a pass of 32 billion parameters takes seconds.
"""

from typing import Any

import pytest
import torch

from mathrl.learners.optimizer import FlatParameters
from mathrl.models.logprobs import response_logprobs
from mathrl.models.lora import add_lora
from mathrl.models.model_shape import config_of, shape_of
from mathrl.models.packing import Group
from mathrl.params.schema import Params
from mathrl.planning.gpu_phases import gpu_scoring, gpu_update
from mathrl.planning.memory import micro_batch_tokens, plan_memory
from mathrl.trainers.policy_update import micro_batch_loss
from tests.models.audit import Dispatch, meta_model, on_a_gpu
from tests.models.test_audit import policy_batch
from tests.stages.gpu_configurations import GPUS, parameters

PROMPT = 64  # tokens; short prompts leave most tokens with logits, which is the worst case that the plan assumes
# Each with another moment of the peak, or other terms in it.
PRESETS = (
    "countdown-grpo-zero-24gb",  # the logits of a small slice; gradients in bfloat16
    "qwen2.5-0.5b-gsm8k",  # one layer of many tokens; gradients in float32
    "gsm8k-ppo-24gb",  # gradients of the head, which is tied, of few tokens
    "deepseekmath-7b",  # as many key heads as query heads, an untied head
    "deepseek-r1-7b",  # all activations kept, by 4 ranks together
    "rlinf-7b",  # inputs of the layers, by 4 ranks together
    "llama-1b-lora-16gb",  # adapters
)
ACTIVATIONS = (
    "activations",
    "logits",
    "hidden states",
    "temporary tensors",
    "gradient of the head",
    "gradients of head",
)


def micro_batch(params: Params) -> list[Group]:
    """Prompts with one response each, as many packed tokens of a rank as the plan assumes."""
    prompt, longest = params.prompt.max_tokens, params.rl.max_tokens
    left, groups = micro_batch_tokens(params, "rl", prompt, prompt + longest) // params.training.context_ranks, []
    while left > PROMPT:
        groups.append(Group([1] * PROMPT, [[2] * min(longest, left - PROMPT + 1)]))
        left -= groups[-1].packed_tokens
    return groups


def counted(params: Params, memory: float) -> float:
    """Bytes of a micro-batch's forward and backward pass at their peak, beside weights and kept gradients."""
    model = meta_model(params.model.base.path, checkpointing=params.rl.gradient_checkpointing)  # type: ignore[union-attr]
    kept: Any = None
    if params.rl.lora is not None:
        add_lora(model, params.rl.lora, seed=0)
    if params.training.backend == "torch":
        kept = FlatParameters(model)
    else:  # DeepSpeed takes a gradient as soon as it is there
        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    part = policy_batch(micro_batch(params), params.rl)
    with on_a_gpu(memory), Dispatch(model, 0.0) as dispatch:
        micro_batch_loss(model, part, params.rl, 0.001)[0].backward()
    del kept
    return float(dispatch.audit.peak)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_plan_is_within_ten_percent_of_the_count(preset: str) -> None:
    params, memory = parameters(preset), float(GPUS[preset].memory)
    plan = plan_memory(shape_of(config_of(params.model.base)), params, "rl", "cuda", gpu_memory=memory)
    passes = plan.phases["forward and backward"]
    planned = sum(size for name, size in passes.items() if name.startswith(ACTIVATIONS))
    assert planned == pytest.approx(counted(params, memory), rel=0.1)


@pytest.mark.parametrize("change", ["rl.gradient_checkpointing=false", "rl.loss.entropy_coef=0.01"])
def test_kept_activations_and_an_entropy_gradient_are_counted_too(change: str) -> None:
    params, memory = parameters("qwen2.5-0.5b-gsm8k", change), 80e9
    shape = shape_of(config_of(params.model.base))
    planned, count = plan_memory(shape, params, "rl", "cuda", gpu_memory=memory), counted(params, memory)
    assert sum(planned.phases["forward and backward"].values()) == pytest.approx(count, rel=0.1)
    if not params.rl.gradient_checkpointing:  # the count can fail: a plan with checkpointing is far from it
        tokens = sum(group.packed_tokens for group in micro_batch(params))
        assert count > 4 * sum(gpu_update(shape, tokens, memory, recomputed=True).values())


def test_scoring_is_within_ten_percent_of_the_count() -> None:
    for preset in ("qwen2.5-0.5b-gsm8k", "deepseekmath-rl"):
        params, memory = parameters(preset), 80e9
        model, groups = meta_model(params.model.base.path), micro_batch(params)  # type: ignore[union-attr]
        with on_a_gpu(memory), Dispatch(model, 0.0) as dispatch, torch.no_grad():
            response_logprobs(model, groups, entropy=False)
        tokens = sum(group.packed_tokens for group in groups)
        planned = gpu_scoring(shape_of(config_of(params.model.base)), tokens, memory)
        assert sum(planned.values()) == pytest.approx(dispatch.audit.peak, rel=0.1), preset
