"""rl: reinforcement learning on the mixture, from the SFT model. `python -m mathrl.stages.rl`.

Writes models/rl and reports/rl/ (metrics.jsonl, curve.png). Starts only when the SFT model's measured pass@8
reaches rl.min_pass_at_8: where it never succeeds there is nothing to learn from. Resumes bit for bit from its
last checkpoint; a signal ends it at the next step with exit status 75.
"""

import shutil
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.files import read_json, write_jsonl, written_aside
from mathrl.core.launch import launch_ranks, rank
from mathrl.core.metrics import without_timings
from mathrl.core.problems import read_problems
from mathrl.data.sft_sets import few_shot_examples
from mathrl.stages.entry import StageRun, run_stage

PROBLEMS, DEV = Path("data/mixture/train.jsonl"), Path("data/curated/dev.jsonl")
EXAMPLES, DIFFICULTY = Path("data/curated/sft.jsonl"), Path("data/difficulty/summary.json")
START, MODEL, REPORT = Path("models/sft"), Path("models/rl"), Path("reports/rl")
PANELS = (
    {"reward/accuracy": "accuracy of the roll-outs", "dev/accuracy": "dev accuracy (averaged weights)"},
    {"response_length": "response length", "dev/response_length": "dev response length"},
    {"entropy": "entropy", "rollout/zero_variance_share": "groups without a difference"},
)


def check_skill(pass_at_8: float, wanted: float) -> None:
    """Raises UserError: the SFT model solves too few problems even in eight tries."""
    if pass_at_8 < wanted:
        raise UserError(
            f"{DIFFICULTY}: the SFT model's pass@8 is {pass_at_8:.3f}, below rl.min_pass_at_8 = {wanted}: "
            "train it longer (sft.steps), give it easier problems, or lower rl.min_pass_at_8"
        )


def work(run: StageRun) -> None:
    params = run.params
    check_skill(float(read_json(DIFFICULTY)["pass_at_8"]), params.rl.min_pass_at_8)
    launch_ranks(params.run.processes)
    # torch: after the ranks are started, so that each has its own.
    from mathrl.models.load import export_model, load_model, load_tokenizer
    from mathrl.rewards.compose import build_reward
    from mathrl.rollout.sampler import Sampler
    from mathrl.rollout.torch_engine import TorchEngine
    from mathrl.trainers.backend import Backend, choose_device
    from mathrl.trainers.curves import draw_curves
    from mathrl.trainers.rl import train_rl

    backend = Backend(choose_device(params.run.device))
    tokenizer, model = load_tokenizer(START), load_model(START, params.model, backend.device)
    few_shot = few_shot_examples(params.prompt, EXAMPLES)
    sampler = Sampler(TorchEngine(model, tokenizer, params.rollout), tokenizer, params.prompt, few_shot)
    problems, dev = read_problems(PROBLEMS), read_problems(DEV)
    result = train_rl(
        model, sampler, problems, dev, build_reward(params.reward), params.rl, params.run.seed, backend,
        run.state, run.open_metrics,
    )  # fmt: skip
    if rank() != 0:
        return
    export_model(
        model, tokenizer, MODEL,
        f"# RL model of mathrl\n\nTrained from models/sft on {len(problems):,} problems: "
        f"{result.steps} steps of {params.rl.prompts_per_step} prompts x {params.rl.group_size} responses, "
        f"seed {params.run.seed}; accuracy on dev problems {result.dev_accuracy or 0.0:.3f} (temperature "
        f"{params.rl.eval_temperature}).\n",
    )  # fmt: skip
    with written_aside(REPORT) as folder:
        folder.mkdir()
        rows = without_timings(run.record / "metrics.jsonl")
        write_jsonl(folder / "metrics.jsonl", rows)
        draw_curves(rows, PANELS, folder / "curve.png", "Reinforcement learning with verifiable rewards")
        shutil.copy(folder / "curve.png", run.artifacts / "rl_curve.png")
    run.dataset("mixture", PROBLEMS)
    run.summary({"dev/accuracy": result.dev_accuracy or 0.0, "sampled_tokens": float(result.sampled_tokens)})


if __name__ == "__main__":
    run_stage("rl", work, inputs=[PROBLEMS, DEV, EXAMPLES, DIFFICULTY, START], outputs=[MODEL, REPORT])
