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
from mathrl.core.hashing import digest_path
from mathrl.core.launch import from_rank_0, launch_ranks, world_size
from mathrl.core.paths import state_root
from mathrl.core.problems import read_problems
from mathrl.core.progress import progress
from mathrl.core.seeding import derive_seed
from mathrl.core.types import Problem
from mathrl.data.difficulty import (
    add_cached_counts,
    cache_file,
    pass_rate_row,
    problem_key,
    read_cached_counts,
    seeded_subset,
    summarise,
)
from mathrl.data.sft_sets import few_shot_examples
from mathrl.params import Params
from mathrl.rewards.compose import build_reward
from mathrl.stages.stage_run import StageRun, run_stage

PROBLEMS, EXAMPLES, MODEL = Path("data/curated/rl.jsonl"), Path("data/curated/sft.jsonl"), Path("models/sft")
DIFFICULTY, REPORT = Path("data/difficulty"), Path("reports/difficulty")


def work(run: StageRun) -> None:
    measure_pass_rates(run, start=MODEL, data=PROBLEMS, examples=EXAMPLES, out=DIFFICULTY, report=REPORT)


def measure_pass_rates(run: StageRun, *, start: Path, data: Path, examples: Path, out: Path, report: Path) -> None:
    """Write the pass rates of the model in `start` on the problems of `data` to the folders `out` and `report`."""
    params = run.params
    settings = params.difficulty
    launch_ranks(params.run.processes, params.run.device, fewer=True)
    # torch: after the ranks are started, so that each has its own.
    from mathrl.models.device import choose_device
    from mathrl.reports.pictures import draw_difficulty
    from mathrl.rollout.engine import Sampling
    from mathrl.rollout.open_engine import open_engine
    from mathrl.rollout.sample_problems import sample_problems, usable
    from mathrl.rollout.sampler import Sampler

    run.dataset("rl", data)
    problems = seeded_subset(read_problems(data), settings.max_problems, params.run.seed)
    engine, tokenizer = open_engine(start, params.model, params.rollout, choose_device(params.run.device))
    few_shot = few_shot_examples(params.prompt, examples)
    sampler = Sampler(engine, tokenizer, params.prompt, few_shot)
    sampling = Sampling(settings.samples, settings.temperature, settings.max_tokens)
    cache = rates_file(params, start, few_shot)
    # The same at all ranks, and after an interruption, whatever other runs measure meanwhile.
    known: dict[str, int] = from_rank_0(lambda: _snapshot(run.state / "known.json", cache, problems), "known")
    unmeasured = [problem for problem in problems if problem_key(problem) not in known]
    with progress("difficulty", total=len(unmeasured) * settings.samples) as bar:
        samples = sample_problems(
            sampler,
            unmeasured,
            sampling,
            build_reward(params.reward),
            seed=derive_seed(params.run.seed, "difficulty"),
            name="difficulty",
            chunk_size=max(1, params.rollout.max_sequences // settings.samples),
            state=run.state,
            on_progress=lambda count: bar.advance(count * world_size()),
        )
    if samples is None:
        return
    if not known:
        usable(problems, samples)
    measured = {
        problem_key(problem): sum(sample["correct"] for sample in group)
        for problem, group in zip(unmeasured, samples, strict=True)
        if group is not None
    }
    add_cached_counts(cache, measured)
    correct = known | measured
    rows = [
        pass_rate_row(problem, correct[key], settings.samples)
        for problem in problems
        if (key := problem_key(problem)) in correct
    ]
    if not rows:
        raise UserError(f"{data}: no problem was measured")
    summary = summarise(rows) | {"prompts_too_long": len(problems) - len(rows)}
    with written_aside(report) as folder:
        folder.mkdir()
        draw_difficulty(rows, folder / "histogram.png", summary)
        shutil.copy(folder / "histogram.png", run.artifacts / "difficulty.png")
    with written_aside(out) as folder:
        folder.mkdir()
        write_jsonl(folder / "pass_rates.jsonl", rows)
        write_json(folder / "summary.json", summary)
    figures = summary | {"measured_before": len(known)}  # no output: it depends on the runs before
    run.summary({name: float(value) for name, value in figures.items() if isinstance(value, int | float)})


def rates_file(params: Params, start: Path, few_shot: Sequence[Problem]) -> Path:
    """The cache of this policy's pass rates, keyed by everything that a rate depends on."""
    settings, engine = params.difficulty, params.rollout
    sections = [part.model_dump(mode="json") for part in (params.prompt, params.reward)]
    sampling = {"samples": settings.samples, "temperature": settings.temperature, "max_tokens": settings.max_tokens}
    # With the same seed, engines of different arithmetic draw different samples.
    arithmetic = [params.model.precision, engine.engine, None if engine.engine == "torch" else engine.vllm.dtype]
    key = [*sections, arithmetic, sampling, params.run.seed]
    return cache_file(state_root(), digest_path(start), *key, few_shot=few_shot)


def _snapshot(file: Path, cache: Path, problems: list[Problem]) -> dict[str, int]:
    """The cached counts of correct samples by problem, as they were when this run first began."""
    if not file.exists():
        write_json(file, read_cached_counts(cache, problems))
    counts: dict[str, int] = read_json(file)
    return counts


if __name__ == "__main__":
    run_stage("difficulty", work, inputs=[PROBLEMS, EXAMPLES, MODEL], outputs=[DIFFICULTY, REPORT])
