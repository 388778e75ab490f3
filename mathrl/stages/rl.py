"""rl: reinforcement learning on the mixture, from the SFT model. `python -m mathrl.stages.rl`.

Writes models/rl and reports/rl/ (metrics.jsonl, health.json, curve.png, with rl.keep_rollouts rollouts.parquet, with
rl.asynchronous events.jsonl).
Starts only when the SFT model's measured pass@8 reaches rl.min_pass_at_8: where it never succeeds there is nothing to
learn from. Resumes from its last checkpoint, on a CPU bit for bit; a signal ends it at the next step with exit
status 75.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from mathrl.core.environment import rank
from mathrl.core.errors import UserError
from mathrl.core.files import read_json
from mathrl.core.types import read_problems
from mathrl.data.templates import few_shot_examples
from mathrl.engines.engine import ENGINES
from mathrl.evaluation.benchmark import benchmark_problems
from mathrl.health.watch import HealthMonitor
from mathrl.params import Params
from mathrl.params.evaluate import Evaluate
from mathrl.params.train import EvalBenchmark, Rl
from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun
from mathrl.stages.training_stage import open_training, write_model, write_report

if TYPE_CHECKING:
    from mathrl.trainers.training_run import RlResult

PROBLEMS, DEV = Path("data/mixture/train.jsonl"), Path("data/curated/dev.jsonl")
EXAMPLES, DIFFICULTY = Path("data/curated/sft.jsonl"), Path("data/difficulty/summary.json")
START, MODEL, REPORT = Path("models/sft"), Path("models/rl"), Path("reports/rl")
PANELS = (
    {"reward/accuracy": "accuracy of the rollouts", "dev/accuracy": "dev accuracy (averaged weights)"},
    {"response_length": "response length", "dev/response_length": "dev response length"},
    {"entropy": "entropy of the trained groups", "rollout/zero_variance_share": "uniform groups"},
)


def check_skill(difficulty: Path, wanted: float) -> None:
    """Raises UserError: the SFT model solves too few problems even in eight tries."""
    pass_at_8 = float(read_json(difficulty)["pass_at_8"])
    if pass_at_8 < wanted:
        raise UserError(
            f"{difficulty}: the pass@8 of the model that RL starts from is {pass_at_8:.3f}, below rl.min_pass_at_8 = "
            f"{wanted}: teach it with SFT on solutions first (curate.sft_share and sft.steps together, such as --set "
            "curate.sft_share=0.25 --set sft.steps=100), give it easier problems, check prompt.template, or lower "
            "rl.min_pass_at_8"
        )


def work(
    run: StageRun,
    *,
    start: Path = START,
    data: Sequence[Path] = (PROBLEMS,),
    dev: Path = DEV,
    examples: Path = EXAMPLES,
    model: Path = MODEL,
    report: Path = REPORT,
    others: Mapping[str, Path] = MappingProxyType({"difficulty": DIFFICULTY}),
) -> None:
    """Train the model of the folder `start` on the problems of the files `data`.

    Writes the folders `model` and `report`. `others` may have the file `difficulty`, a summary whose pass@8 must reach
    rl.min_pass_at_8, and folders of models: reward_model, process_reward_model, critic, reference, teacher (see
    `mathrl.trainers.open_rl.Helpers`).
    """
    params, seed, rl = run.params, run.params.run.seed, run.params.rl
    if "difficulty" in others:
        check_skill(others["difficulty"], rl.min_pass_at_8)
    problems, held_out = [problem for file in data for problem in read_problems(file)], read_problems(dev)
    few_shot, health = few_shot_examples(params.prompt, examples), HealthMonitor(params.health, rl, run.health)
    benchmarks = {
        each.name: benchmark_problems(each.name, _limit_problems(params, each)) for each in rl.eval_benchmarks
    }
    engine = ENGINES[rl.engine.type]
    engine.check(others)
    # torch: not before the inputs have been checked.
    from mathrl.models.load import load_tokenizer
    from mathrl.trainers.training_run import RlInputs

    training = open_training(run, health, run.rollouts, engine.device)
    for asked in (problems, *benchmarks.values()):
        run.check_lengths(asked, lambda: load_tokenizer(start, params.model), few_shot)
    folder = run.record.folder
    trained = engine.train(
        RlInputs(params, training, start, problems, held_out, few_shot, others, run.record_resolved, folder, benchmarks)
    )
    result = trained.result
    accuracy = "not measured"
    if result.dev_accuracy is not None:
        accuracy = f"{result.dev_accuracy:.3f} (temperature {rl.dev.temperature})"
    card = (
        f"# RL model of mathrl\n\nTrained from {start} on {len(problems):,} problems: "
        f"{result.steps} steps of {rl.prompts_per_step} prompts x {rl.group_size} responses, "
        f"seed {seed}; accuracy on dev problems {accuracy}.\n"
    )
    write_model(trained.network, trained.tokenizer, model, card)
    title = "Reinforcement learning with verifiable rewards"
    files = [finish_rollouts(run, rl), run.record.events if rl.asynchronous is not None else None]
    kept = [file for file in files if file is not None]
    write_report(run, report, title, PANELS, {"mixture": data}, summary_of(result), health, kept)


def _limit_problems(params: Params, benchmark: EvalBenchmark) -> Params:
    return params.model_copy(update={"evaluate": Evaluate(limit=benchmark.limit)})


def finish_rollouts(run: StageRun, rl: Rl) -> Path | None:
    """The file of the run's kept rollouts; None if it keeps none, or at another rank."""
    if not rl.kept_size or rank() != 0:
        return None
    from mathrl.rollout.rollout_files import WHOLE, RolloutFolder  # pyarrow: only where rollouts are kept

    missing = RolloutFolder(run.rollouts, rl.steps).finish(rl.steps)
    if missing:
        print(f"rl.keep_rollouts: {run.rollouts} lost the rollouts of {len(missing)} steps", file=sys.stderr)
    return run.rollouts / WHOLE


def summary_of(result: RlResult) -> dict[str, float]:
    """The run's final figures; the dev accuracy is one of them where it was measured."""
    summary = {"sampled_tokens": float(result.sampled_tokens)}
    return summary if result.dev_accuracy is None else {"dev/accuracy": result.dev_accuracy, **summary}


if __name__ == "__main__":
    main("rl", work, inputs=[PROBLEMS, DEV, EXAMPLES, DIFFICULTY, START], outputs=[MODEL, REPORT])
