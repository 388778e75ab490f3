"""difficulty: pass rates of the SFT model on the rl split. `python -m mathrl.stages.difficulty`.

Writes data/difficulty/pass_rates.jsonl and summary.json, and reports/difficulty/histogram.png. An interrupted
run resumes from the chunks that it has finished; pass rates that an earlier run measured with the same model
folder, prompt, reward, sampling and seed are reused (mathrl/data/difficulty.py).
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.files import read_json, write_json, write_jsonl, written_aside
from mathrl.core.hashing import derive_seed, digest_path
from mathrl.core.metrics import progress
from mathrl.core.paths import state_root
from mathrl.core.types import Problem, read_problems
from mathrl.curation.prompt_leaks import check_prompts
from mathrl.data.difficulty import (
    add_cached_counts,
    cache_file,
    pass_rate_row,
    problem_key,
    read_cached_counts,
    seeded_subset,
    summarise,
)
from mathrl.data.templates import few_shot_examples
from mathrl.params import Params
from mathrl.params.rollout import Rollout
from mathrl.reports.pictures import draw_difficulty
from mathrl.rewards.compose import build_reward
from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun

PROBLEMS, EXAMPLES, MODEL = Path("data/curated/rl.jsonl"), Path("data/curated/sft.jsonl"), Path("models/sft")
DIFFICULTY, REPORT = Path("data/difficulty"), Path("reports/difficulty")


def work(
    run: StageRun,
    *,
    start: Path = MODEL,
    split: Path = PROBLEMS,
    examples: Path = EXAMPLES,
    out: Path = DIFFICULTY,
    report: Path = REPORT,
) -> None:
    """Write the pass rates of the model in `start` on the problems of `split` to the folders `out` and `report`."""
    params = run.params
    settings = params.difficulty
    # torch: not before the inputs have been checked.
    from mathrl.planning.run_time import LENGTH, SAMPLED, SamplingClock
    from mathrl.rollout.engine import Sampling
    from mathrl.rollout.ranks import from_rank_0
    from mathrl.rollout.sample_problems import sample_problems, usable
    from mathrl.rollout.sampler import open_sampler

    run.dataset("rl", split)
    problems = seeded_subset(read_problems(split), settings.max_problems, params.run.seed)
    few_shot = few_shot_examples(params.prompt, examples)
    sampler = open_sampler(start, params, "difficulty", few_shot)
    run.record_resolved(sampler.engine.rollout)
    run.check_lengths(problems, lambda: sampler.tokenizer, few_shot)
    check_prompts(problems, params.prompt, sampler.tokenizer)
    sampling = Sampling(settings.samples, settings.temperature, settings.max_tokens)
    cache = rates_file(params, sampler.engine.rollout, start, few_shot)
    # The same at all ranks, and after an interruption, whatever other runs measure meanwhile.
    cached: dict[str, int] = from_rank_0(lambda: _snapshot(run.state / "known.json", cache, problems))
    unmeasured = [problem for problem in problems if problem_key(problem) not in cached]
    clock = SamplingClock()
    with progress("difficulty", total=len(unmeasured) * settings.samples) as bar:

        def advance(responses: int) -> None:
            bar.advance(responses)
            clock.tick(responses)

        samples = sample_problems(
            sampler,
            unmeasured,
            sampling,
            build_reward(params.reward),
            seed=derive_seed(params.run.seed, "difficulty"),
            name="difficulty",
            state=run.state,
            on_progress=advance,
        )
    if samples is None:
        return
    if not cached:
        usable(problems, samples)
    measured = {
        problem_key(problem): sum(sample["correct"] for sample in group)
        for problem, group in zip(unmeasured, samples, strict=True)
        if group is not None
    }
    add_cached_counts(cache, measured)
    correct = cached | measured
    rows = [
        pass_rate_row(problem, correct[key], settings.samples)
        for problem in problems
        if (key := problem_key(problem)) in correct
    ]
    if not rows:
        raise UserError(f"{split}: no problem was measured")
    summary = summarise(rows) | {"prompts_too_long": len(problems) - len(rows)}
    with written_aside(report) as folder:
        folder.mkdir()
        draw_difficulty(rows, folder / "histogram.png", summary)
        shutil.copy(folder / "histogram.png", run.artifacts / "difficulty.png")
    with written_aside(out) as folder:
        folder.mkdir()
        write_jsonl(folder / "pass_rates.jsonl", rows)
        write_json(folder / "summary.json", summary)
    figures = summary | {"measured_before": len(cached)}  # no output: it depends on the runs before
    lengths = [sample["length"] for group in samples if group is not None for sample in group]
    if lengths:  # what `mathrl plan` reads
        figures |= {LENGTH: sum(lengths) / len(lengths)}
        figures |= {SAMPLED: clock.per_second() * figures[LENGTH]}
    run.summary({name: float(value) for name, value in figures.items() if isinstance(value, int | float)})


def rates_file(params: Params, engine: Rollout, start: Path, few_shot: Sequence[Problem]) -> Path:
    """The cache of this policy's pass rates, keyed by everything that a rate depends on; `engine` is resolved."""
    settings = params.difficulty
    sections = [part.model_dump(mode="json") for part in (params.prompt, params.reward)]
    sampling = {"samples": settings.samples, "temperature": settings.temperature, "max_tokens": settings.max_tokens}
    # With the same seed, engines of different arithmetic draw different samples.
    arithmetic = [params.model.precision, engine.engine, None if engine.engine == "torch" else engine.vllm.dtype]
    key = [*sections, arithmetic, sampling, params.run.seed]
    if engine.tool.kind != "none":
        key += [part.model_dump(mode="json") for part in (engine.tool, engine.turns)]
    return cache_file(state_root(), digest_path(start), *key, few_shot=few_shot)


def _snapshot(file: Path, cache: Path, problems: list[Problem]) -> dict[str, int]:
    """The cached counts of correct samples by problem, as they were when this run first began."""
    if not file.exists():
        write_json(file, read_cached_counts(cache, problems))
    counts: dict[str, int] = read_json(file)
    return counts


if __name__ == "__main__":
    main("difficulty", work, inputs=[PROBLEMS, EXAMPLES, MODEL], outputs=[DIFFICULTY, REPORT])
