"""difficulty: pass rates of the SFT model on the rl split. `python -m mathrl.stages.difficulty`.

Writes data/difficulty/pass_rates.jsonl and summary.json, and reports/difficulty/histogram.png. Resumes from
the chunks that an interrupted run finished; what an earlier run measured with the same model folder, prompt,
reward, sampling and seed is taken from there (mathrl/data/difficulty.py).
"""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.files import read_json, write_json, write_jsonl, written_aside
from mathrl.core.hashing import digest_path
from mathrl.core.launch import check_ranks, launch_ranks, rank, world_size
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
from mathrl.stages.stage_run import StageRun, run_stage

PROBLEMS, EXAMPLES, MODEL = Path("data/curated/rl.jsonl"), Path("data/curated/sft.jsonl"), Path("models/sft")
DIFFICULTY, REPORT = Path("data/difficulty"), Path("reports/difficulty")


def work(run: StageRun) -> None:
    measure(run, start=MODEL, data=PROBLEMS, examples=EXAMPLES, out=DIFFICULTY, report=REPORT)


def measure(run: StageRun, *, start: Path, data: Path, examples: Path, out: Path, report: Path) -> None:
    """Pass rates of the model of the folder `start` on the problems of `data`, to the folders `out` and
    `report`."""
    params = run.params
    how = params.difficulty
    launch_ranks(params.run.processes, params.run.device, fewer=True)
    # torch: after the ranks are started, so that each has its own.
    from mathrl.models.device import choose_device
    from mathrl.reports.pictures import draw_difficulty
    from mathrl.rewards.compose import build_reward
    from mathrl.rollout.engine import Sampling
    from mathrl.rollout.open_engine import open_engine
    from mathrl.rollout.sample_problems import sample_problems, usable
    from mathrl.rollout.sampler import Sampler

    run.dataset("rl", data)
    problems = seeded_subset(read_problems(data), how.max_problems, params.run.seed)
    engine, tokenizer = open_engine(start, params.model, params.rollout, choose_device(params.run.device))
    few_shot = few_shot_examples(params.prompt, examples)
    sampler = Sampler(engine, tokenizer, params.prompt, few_shot)
    sampling = Sampling(how.samples, how.temperature, how.max_tokens)
    cache = rates_file(params, start, few_shot)
    known = _known(run.state / "known.json", cache, problems)
    unmeasured = [problem for problem in problems if problem_key(problem) not in known]
    with progress("difficulty", total=len(unmeasured) * how.samples) as bar:
        samples = sample_problems(
            sampler,
            unmeasured,
            sampling,
            build_reward(params.reward),
            seed=derive_seed(params.run.seed, "difficulty"),
            name="difficulty",
            chunk_size=max(1, params.rollout.max_sequences // how.samples),
            state=run.state,
            on_progress=lambda count: bar.advance(count * world_size()),
        )
    if samples is None:
        return
    if not known:
        usable(problems, samples)
    measured = {
        problem_key(problem): sum(s["correct"] for s in group)
        for problem, group in zip(unmeasured, samples, strict=True)
        if group is not None
    }
    add_cached_counts(cache, measured)
    correct = known | measured
    rows = [
        pass_rate_row(problem, correct[key], how.samples)
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
    """Where the pass rates of this policy are kept, by all that a rate depends on."""
    how, engine = params.difficulty, params.rollout
    sections = [part.model_dump(mode="json") for part in (params.prompt, params.reward)]
    sampling = {"samples": how.samples, "temperature": how.temperature, "max_tokens": how.max_tokens}
    # Engines of other arithmetic draw other samples of the same seed.
    arithmetic = [params.model.precision, engine.engine, None if engine.engine == "torch" else engine.vllm.dtype]
    settings = [*sections, arithmetic, sampling, params.run.seed]
    return cache_file(state_root(), digest_path(start), *settings, few_shot=few_shot)


def _known(snapshot: Path, cache: Path, problems: list[Problem]) -> dict[str, int]:
    """What was measured before this run began: the same at all ranks, and after an interruption."""
    if rank() == 0 and not snapshot.exists():
        write_json(snapshot, read_cached_counts(cache, problems))
    while not snapshot.exists():
        check_ranks()
        time.sleep(0.01)
    found: dict[str, int] = read_json(snapshot)
    return found


if __name__ == "__main__":
    run_stage("difficulty", work, inputs=[PROBLEMS, EXAMPLES, MODEL], outputs=[DIFFICULTY, REPORT])
