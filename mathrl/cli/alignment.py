"""`mathrl alignment`: do sampler, trainer and a plain Hugging Face forward compute one model?"""

import os
from collections.abc import Sequence
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.core.problems import read_problems
from mathrl.params import load_params

DEV, EXAMPLES = Path("data/curated/dev.jsonl"), Path("data/curated/sft.jsonl")
SAMPLES, LONGEST = 2, 256


def alignment(model: str, problems: Path | None, limit: int, preset: str | None, overrides: Sequence[str]) -> bool:
    """Print the table; returns whether everything is within its limits.

    Raises:
        UserError: no such problems, or no prompt short enough.
    """
    here, rows = Path(model).absolute(), problems.absolute() if problems else DEV
    os.chdir(main_checkout())
    params = load_params(preset=preset, overrides=overrides)
    if not rows.is_file():
        raise UserError(f"{rows}: no such file; run `mathrl run curate`, or give --problems FILE")
    from mathrl.data.sft_sets import few_shot_examples  # torch, transformers
    from mathrl.evaluation.alignment import gaps, load_plain, plain_logprobs, trainer_logprobs
    from mathrl.learners.distributed import choose_device
    from mathrl.models.packing import Group
    from mathrl.rollout.engine import Sampling, canary_tolerance, dtype_name
    from mathrl.rollout.open_engine import open_engine
    from mathrl.rollout.sampler import Sampler

    folder = here if here.exists() else model
    device, how = choose_device(params.run.device), params.model
    engine, tokenizer = open_engine(folder, how, params.rollout, device)
    sampler = Sampler(engine, tokenizer, params.prompt, few_shot_examples(params.prompt, EXAMPLES))
    made = (sampler.prompt_tokens(problem) for problem in read_problems(rows)[:limit])
    prompts = [prompt for prompt in made if prompt is not None]
    if not prompts:
        raise UserError(f"{rows}: no prompt of its first {limit} is within prompt.max_tokens")
    temperature = params.rl.temperature
    sampling = Sampling(SAMPLES, temperature, min(LONGEST, params.rl.max_tokens))
    completions = engine.generate(prompts, sampling, params.run.seed)
    groups = [
        Group(tuple(prompt), tuple(each.tokens for each in row))
        for prompt, row in zip(prompts, completions, strict=True)
    ]
    trainer_N = trainer_logprobs(folder, how, device, groups, temperature)
    plain_N = plain_logprobs(load_plain(folder, how, device), groups, temperature)
    dtype = how.precision if params.rollout.engine == "torch" else dtype_name(params.rollout, how)
    own, other = (canary_tolerance(params.rollout, how, each) for each in (dtype, how.precision))
    found = gaps(completions, trainer_N, plain_N, (own, other), params.rollout.mismatch_limit)
    engine_name = params.rollout.engine
    print(
        f"{len(trainer_N):,} tokens of {len(prompts) * SAMPLES} responses, sampled by {engine_name} "
        f"({dtype}); trainer {how.precision}"
    )
    print(f"{'':<44}{'max |d log p|':>14}{'mean':>10}{'limit':>9}{'mean exp':>11}{'limit':>7}")
    for each in found:
        print(
            f"{f'{each.first} and {each.second}':<44}{each.largest:>14.2g}{each.mean:>10.2g}"
            f"{each.tolerance:>9g}{each.alignment:>11.6f}{each.limit:>7g}{'' if each.fine else '  too far'}"
        )
    return all(each.fine for each in found)
