"""difficulty: pass rates of the SFT model on the rl split. `python -m mathrl.stages.difficulty`.

Writes data/difficulty/pass_rates.jsonl and summary.json, and reports/difficulty/histogram.png. Resumes from
the chunks that an interrupted run finished.
"""

import shutil
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.files import write_json, write_jsonl, written_aside
from mathrl.core.launch import launch_ranks, world_size
from mathrl.core.problems import read_problems
from mathrl.core.progress import progress
from mathrl.core.seeding import derive_seed
from mathrl.data.difficulty import choose, pass_rate_row, summarise
from mathrl.data.sft_sets import few_shot_examples
from mathrl.stages.entry import StageRun, run_stage

PROBLEMS, EXAMPLES, MODEL = Path("data/curated/rl.jsonl"), Path("data/curated/sft.jsonl"), Path("models/sft")
DIFFICULTY, REPORT = Path("data/difficulty"), Path("reports/difficulty")


def work(run: StageRun) -> None:
    measure(run, start=MODEL, data=PROBLEMS, examples=EXAMPLES, out=DIFFICULTY, report=REPORT)


def measure(run: StageRun, *, start: Path, data: Path, examples: Path, out: Path, report: Path) -> None:
    """Pass rates of the model of the folder `start` on the problems of `data`, to the folders `out` and
    `report`."""
    params = run.params
    how = params.difficulty
    launch_ranks(params.run.processes)
    # torch: after the ranks are started, so that each has its own.
    from mathrl.evaluation.device import device_name
    from mathrl.evaluation.pictures import draw_difficulty
    from mathrl.evaluation.sharded import sample_all, usable
    from mathrl.rewards.compose import build_reward
    from mathrl.rollout.engine import Sampling
    from mathrl.rollout.open import open_engine
    from mathrl.rollout.sampler import Sampler

    run.dataset("rl", data)
    problems = choose(read_problems(data), how.max_problems, params.run.seed)
    engine, tokenizer = open_engine(start, params.model, params.rollout, device_name(params.run.device))
    sampler = Sampler(engine, tokenizer, params.prompt, few_shot_examples(params.prompt, examples))
    sampling = Sampling(how.samples, how.temperature, how.max_tokens)
    with progress("difficulty", total=len(problems) * how.samples) as bar:
        samples = sample_all(
            sampler, problems, sampling, build_reward(params.reward),
            seed=derive_seed(params.run.seed, "difficulty"), name="difficulty",
            chunk_size=max(1, params.rollout.max_sequences // how.samples), state=run.state,
            on_progress=lambda count: bar.advance(count * world_size()),
        )  # fmt: skip
    if samples is None:
        return
    usable(problems, samples)
    rows = [
        pass_rate_row(problem, sum(s["correct"] for s in group), len(group))
        for problem, group in zip(problems, samples, strict=True)
        if group is not None
    ]
    if not rows:
        raise UserError(f"{data}: no problem was measured")
    summary = summarise(rows) | {"prompts_too_long": len(problems) - len(rows)}
    with written_aside(report) as folder:
        folder.mkdir()
        draw_difficulty(rows, folder / "histogram.png")
        shutil.copy(folder / "histogram.png", run.artifacts / "difficulty.png")
    with written_aside(out) as folder:
        folder.mkdir()
        write_jsonl(folder / "pass_rates.jsonl", rows)
        write_json(folder / "summary.json", summary)
    run.summary({name: float(value) for name, value in summary.items() if isinstance(value, int | float)})


if __name__ == "__main__":
    run_stage("difficulty", work, inputs=[PROBLEMS, EXAMPLES, MODEL], outputs=[DIFFICULTY, REPORT])
