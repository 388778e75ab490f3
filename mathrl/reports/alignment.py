"""The log-probs of one model in three ways, on responses sampled now: sampling engine, trainer, plain forward."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.problems import read_problems
from mathrl.data.sft_sets import few_shot_examples
from mathrl.evaluation import alignment
from mathrl.models.device import choose_device
from mathrl.models.load import folder_trial
from mathrl.models.packing import Group
from mathrl.params import Params
from mathrl.rollout.choices import dtype_name, longest_sequence
from mathrl.rollout.engine import Sampling, canary_tolerance
from mathrl.rollout.open_engine import open_engine
from mathrl.rollout.sampler import Sampler

EXAMPLES = Path("data/curated/sft.jsonl")
SAMPLES, LONGEST = 2, 256


@dataclass(frozen=True)
class ThreeForwards:
    """The pairwise gaps, and what they were measured on; `engine` sampled, in `dtype`; `architecture` is a sentence."""

    gaps: Sequence[alignment.Gap]
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
    trainer_N = alignment.trainer_logprobs(model, params.model, device, groups, temperature)
    plain = alignment.load_plain(model, params.model, device)
    plain_N = alignment.plain_logprobs(plain, groups, temperature)
    precision = params.model.precision
    dtype = precision if engine.rollout.engine == "torch" else dtype_name(params.rollout, params.model)
    tolerances = (
        canary_tolerance(params.rollout, params.model, dtype),
        canary_tolerance(params.rollout, params.model, precision),
    )
    architecture = folder_trial(model, params.model, device).sentence()
    gaps = alignment.gaps(completions, trainer_N, plain_N, tolerances, params.rollout.mismatch_limit)
    return ThreeForwards(gaps, len(trainer_N), len(prompts) * SAMPLES, engine.rollout.engine, dtype, architecture)
