"""The log-probs of one model in three ways, on responses sampled now: sampling engine, trainer, plain forward.

The plain forward is transformers' own layers in float32, a response at a time: no packing, no padding, no layer
exchanged for a faster one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mathrl.algorithms.alignment import logprob_alignment
from mathrl.core.errors import UserError
from mathrl.core.types import Completion, read_problems
from mathrl.data.templates import few_shot_examples
from mathrl.models.device import choose_device
from mathrl.models.load import folder_trial, load_model, resolve_folder
from mathrl.models.logprobs import response_logprobs
from mathrl.models.packing import Group
from mathrl.models.transformers_import import AutoModelForCausalLM
from mathrl.params import Params
from mathrl.params.run import Model, PretrainedModel
from mathrl.rollout.choices import longest_sequence
from mathrl.rollout.engine import Sampling, canary_tolerance
from mathrl.rollout.open_engine import open_engine
from mathrl.rollout.sampler import Sampler
from mathrl.servers.vllm_arguments import dtype_name

SAMPLER, TRAINER, PLAIN = "sampler", "trainer", "plain Hugging Face, float32"


@dataclass(frozen=True)
class Gap:
    """Log-probs of two of them; differences in nats, `alignment` the mean of (1/L) sum exp |difference|.

    Example: Gap("sampler", "trainer", 1.7e-5, 2.6e-6, 1.0000026, 1e-4, 1.05).
    """

    first: str
    second: str
    largest: float
    mean: float
    alignment: float
    tolerance: float
    limit: float

    @property
    def fine(self) -> bool:
        return self.mean <= self.tolerance and self.alignment <= self.limit  # false for a NaN


@torch.no_grad()
def plain_logprobs(network: Any, groups: Sequence[Group], temperature: float) -> Tensor:
    """[N], a forward pass for each response."""
    logprobs = []
    for group in groups:
        for response in group.responses:
            ids = torch.tensor([[*group.prompt, *response]], device=network.device)
            logits = network(input_ids=ids, use_cache=False).logits[0].float() / temperature
            start = len(group.prompt) - 1
            rows = logits[start : start + len(response)].log_softmax(-1)
            logprobs.append(rows.gather(1, ids[0, len(group.prompt) :, None])[:, 0].cpu())
    return torch.cat(logprobs)


def load_plain(folder: Path | str, model: Model, device: torch.device) -> Any:
    """The folder's weights in transformers' own layers, float32."""
    path, options = resolve_folder(folder)
    if isinstance(model.base, PretrainedModel):
        options["trust_remote_code"] = model.base.trust_remote_code
    network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, use_safetensors=True, **options)
    return network.to(device).eval()


def compare_logprobs(
    completions: Sequence[Sequence[Completion]],
    trainer_N: Tensor,
    plain_N: Tensor,
    tolerances: tuple[float, float],
    limit: float,
) -> list[Gap]:
    """The gaps between each two; `tolerances` are of sampler and trainer, and of the trainer and the plain forward."""
    sampler_N = torch.from_numpy(np.concatenate([response.logprobs for group in completions for response in group]))
    lengths_S = torch.tensor([len(completion.tokens) for group in completions for completion in group])
    sampled, plain = tolerances
    pairs = [
        (SAMPLER, TRAINER, sampler_N, trainer_N, sampled),
        (TRAINER, PLAIN, trainer_N, plain_N, plain),
        (SAMPLER, PLAIN, sampler_N, plain_N, max(sampled, plain)),
    ]
    result = []
    for first, second, first_N, second_N, tolerance in pairs:
        gap_N = (first_N - second_N).abs()
        ratio = float(logprob_alignment(first_N, second_N, lengths_S).mean())
        result.append(Gap(first, second, float(gap_N.max()), float(gap_N.mean()), ratio, tolerance, limit))
    return result


def trainer_logprobs(
    folder: Path | str, model: Model, device: torch.device, groups: Sequence[Group], temperature: float
) -> Tensor:
    """[N], as an update computes them: packed, in `model.precision`."""
    network = load_model(folder, model, device)
    with torch.no_grad():
        return response_logprobs(network, groups, temperature, entropy=False)[0].float().cpu()


EXAMPLES = Path("data/curated/sft.jsonl")
SAMPLES, LONGEST = 2, 256


@dataclass(frozen=True)
class ThreeForwards:
    """The pairwise gaps, and what they were measured on; `engine` sampled, in `dtype`; `architecture` is a sentence."""

    gaps: Sequence[Gap]
    tokens: int
    responses: int
    engine: str
    dtype: str
    architecture: str


def compare_forwards(model: Path | str, problems: Path, limit: int, params: Params) -> ThreeForwards:
    """Sample two responses to each of the first `limit` problems and score their tokens in three ways.

    Raises:
        UserError: no model there, or no prompt short enough.
    """
    device = choose_device(params.run.device)
    temperature, max_tokens = params.rl.temperature, min(LONGEST, params.rl.max_tokens)
    engine, tokenizer = open_engine(
        model, params.model, params.rollout, device, longest_sequence(params.prompt, max_tokens)
    )
    sampler = Sampler(engine, tokenizer, params.prompt, few_shot_examples(params.prompt, EXAMPLES))
    tokenized = (sampler.prompt_tokens(problem) for problem in read_problems(problems)[:limit])
    prompts = [prompt for prompt in tokenized if prompt is not None]
    if not prompts:
        raise UserError(f"{problems}: none of the first {limit} prompts is within prompt.max_tokens")
    sampling = Sampling(SAMPLES, temperature, max_tokens)
    completions = engine.generate(prompts, sampling, params.run.seed)
    groups = [
        Group(tuple(prompt), tuple(response.tokens for response in responses))
        for prompt, responses in zip(prompts, completions, strict=True)
    ]
    trainer_N = trainer_logprobs(model, params.model, device, groups, temperature)
    plain = load_plain(model, params.model, device)
    plain_N = plain_logprobs(plain, groups, temperature)
    precision = params.model.precision
    dtype = precision if engine.rollout.engine == "torch" else dtype_name(params.rollout, params.model)
    tolerances = (
        canary_tolerance(params.rollout, params.model, dtype),
        canary_tolerance(params.rollout, params.model, precision),
    )
    architecture = folder_trial(model, params.model, device).sentence()
    gaps = compare_logprobs(completions, trainer_N, plain_N, tolerances, params.rollout.mismatch_limit)
    return ThreeForwards(gaps, len(trainer_N), len(prompts) * SAMPLES, engine.rollout.engine, dtype, architecture)
