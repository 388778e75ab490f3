"""`mathrl alignment`: do sampler, trainer and a plain Hugging Face forward compute one model?"""

import os
from pathlib import Path
from typing import Annotated

import typer

from mathrl.cli.options import Overrides, Preset
from mathrl.core.errors import UserError
from mathrl.core.paths import main_checkout
from mathrl.core.problems import read_problems
from mathrl.params import load_params

DEV, EXAMPLES = Path("data/curated/dev.jsonl"), Path("data/curated/sft.jsonl")
SAMPLES, LONGEST = 2, 256


def alignment(
    model: Annotated[str, typer.Argument(help="A Hugging Face model folder, or a hub id.")],
    problems: Annotated[Path | None, typer.Option(help="Curated problems (default data/curated/dev.jsonl).")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of problems to compare (two responses each).")] = 16,
    preset: Preset = None,
    overrides: Overrides = None,
) -> None:
    """Compare log-probs of the sampling engine, the trainer and a plain Hugging Face forward in float32.

    All three score the same sampled responses; exit status 1 if two of them differ by more than their limits.
    """
    local, rows = Path(model).absolute(), problems.absolute() if problems else DEV
    os.chdir(main_checkout())
    params = load_params(preset=preset, overrides=overrides or ())
    if not rows.is_file():
        raise UserError(f"{rows}: no such file; run `mathrl run curate`, or give --problems FILE")
    from mathrl.data.sft_sets import few_shot_examples  # torch and transformers: after the checks
    from mathrl.evaluation.alignment import gaps, load_plain, plain_logprobs, trainer_logprobs
    from mathrl.learners.distributed import choose_device
    from mathrl.models.packing import Group
    from mathrl.rollout.engine import Sampling, canary_tolerance, dtype_name
    from mathrl.rollout.open_engine import open_engine
    from mathrl.rollout.sampler import Sampler

    folder = local if local.exists() else model
    device, model_params = choose_device(params.run.device), params.model
    engine, tokenizer = open_engine(folder, model_params, params.rollout, device)
    sampler = Sampler(engine, tokenizer, params.prompt, few_shot_examples(params.prompt, EXAMPLES))
    tokenized = (sampler.prompt_tokens(problem) for problem in read_problems(rows)[:limit])
    prompts = [prompt for prompt in tokenized if prompt is not None]
    if not prompts:
        raise UserError(f"{rows}: none of the first {limit} prompts is within prompt.max_tokens")
    temperature = params.rl.temperature
    sampling = Sampling(SAMPLES, temperature, min(LONGEST, params.rl.max_tokens))
    completions = engine.generate(prompts, sampling, params.run.seed)
    groups = [
        Group(tuple(prompt), tuple(response.tokens for response in responses))
        for prompt, responses in zip(prompts, completions, strict=True)
    ]
    trainer_N = trainer_logprobs(folder, model_params, device, groups, temperature)
    plain_N = plain_logprobs(load_plain(folder, model_params, device), groups, temperature)
    engine_name, precision = params.rollout.engine, model_params.precision
    dtype = precision if engine_name == "torch" else dtype_name(params.rollout, model_params)
    sampler_tolerance, trainer_tolerance = (
        canary_tolerance(params.rollout, model_params, name) for name in (dtype, precision)
    )
    tolerances = (sampler_tolerance, trainer_tolerance)
    rows_of_gaps = gaps(completions, trainer_N, plain_N, tolerances, params.rollout.mismatch_limit)
    print(
        f"{len(trainer_N):,} tokens of {len(prompts) * SAMPLES} responses, sampled by {engine_name} "
        f"({dtype}); trainer {precision}"
    )
    print(f"{'':<44}{'max |d log p|':>14}{'mean':>10}{'limit':>9}{'mean exp':>11}{'limit':>7}")
    for gap in rows_of_gaps:
        print(
            f"{f'{gap.first} and {gap.second}':<44}{gap.largest:>14.2g}{gap.mean:>10.2g}"
            f"{gap.tolerance:>9g}{gap.alignment:>11.6f}{gap.limit:>7g}{'' if gap.fine else '  too far'}"
        )
    if not all(gap.fine for gap in rows_of_gaps):
        raise SystemExit(1)
