"""rl: reinforcement learning on the mixture, from the SFT model. `python -m mathrl.stages.rl`.

Writes models/rl and reports/rl/ (metrics.jsonl, health.json, curve.png). Starts only when the SFT model's
measured pass@8 reaches rl.min_pass_at_8: where it never succeeds there is nothing to learn from. Resumes bit
for bit from its last checkpoint; a signal ends it at the next step with exit status 75.
"""

from collections.abc import Sequence
from pathlib import Path

from mathrl.core.errors import UserError
from mathrl.core.files import read_json, write_json, written_aside
from mathrl.core.launch import launch_ranks, rank
from mathrl.core.problems import read_problems
from mathrl.data.sft_sets import few_shot_examples
from mathrl.stages.stage_run import StageRun, run_stage

PROBLEMS, DEV = Path("data/mixture/train.jsonl"), Path("data/curated/dev.jsonl")
EXAMPLES, DIFFICULTY = Path("data/curated/sft.jsonl"), Path("data/difficulty/summary.json")
START, MODEL, REPORT = Path("models/sft"), Path("models/rl"), Path("reports/rl")
PANELS = (
    {"reward/accuracy": "accuracy of the roll-outs", "dev/accuracy": "dev accuracy (averaged weights)"},
    {"response_length": "response length", "dev/response_length": "dev response length"},
    {"entropy": "entropy", "rollout/zero_variance_share": "groups without a difference"},
)


def check_skill(difficulty: Path, wanted: float) -> None:
    """Raises UserError: the SFT model solves too few problems even in eight tries."""
    pass_at_8 = float(read_json(difficulty)["pass_at_8"])
    if pass_at_8 < wanted:
        raise UserError(
            f"{difficulty}: the SFT model's pass@8 is {pass_at_8:.3f}, below rl.min_pass_at_8 = {wanted}: "
            "train it longer (sft.steps), give it easier problems, see if it was trained on such prompts "
            "(prompt.template), or lower rl.min_pass_at_8"
        )


def work(run: StageRun) -> None:
    reinforce(
        run,
        start=START,
        data=(PROBLEMS,),
        dev=DEV,
        examples=EXAMPLES,
        difficulty=DIFFICULTY,
        model=MODEL,
        report=REPORT,
    )


def reinforce(
    run: StageRun, *, start: Path, data: Sequence[Path], dev: Path, examples: Path, model: Path, report: Path,
    difficulty: Path | None = None, reward_model: Path | None = None,
    process_reward_model: Path | None = None, critic: Path | None = None,
    reference: Path | None = None, teacher: Path | None = None,
) -> None:  # fmt: skip
    """Train the model of the folder `start` on the problems of the files `data`.

    Writes the folders `model` and `report`. Where a `difficulty` summary is given, its pass@8 must reach
    rl.min_pass_at_8. The other folders are models that take part: see `mathrl.trainers.rl`.
    """
    params = run.params
    if difficulty is not None:
        check_skill(difficulty, params.rl.min_pass_at_8)
    launch_ranks(params.run.processes, params.run.device)
    # torch: after the ranks are started, so that each has its own.
    from mathrl.health.watch import WatchedSink, examine
    from mathrl.learners.distributed import Backend, choose_device
    from mathrl.models.load import export_model, load_model, load_tokenizer
    from mathrl.models.scores import load_scorer
    from mathrl.reports.training_curves import report_curves
    from mathrl.rewards.compose import build_reward
    from mathrl.rollout.open_engine import training_engine
    from mathrl.rollout.sampler import Sampler
    from mathrl.trainers.collect import Judge
    from mathrl.trainers.judges import continuations_judge, process_judge, reward_model_judge
    from mathrl.trainers.rl import train_rl

    backend = Backend(choose_device(params.run.device), params.training)
    tokenizer = load_tokenizer(start, params.model)
    network = load_model(start, params.model, backend.device, plain=backend.plain)
    few_shot = few_shot_examples(params.prompt, examples)
    ahead = params.rl.prefetch
    engine = training_engine(network, start, tokenizer, params.model, params.rollout, ahead)
    sampler = Sampler(engine, tokenizer, params.prompt, few_shot)
    problems = [problem for file in data for problem in read_problems(file)]
    how, seed, reward = params.rl, params.run.seed, build_reward(params.reward)
    if critic is not None and how.critic is not None:
        how = how.model_copy(update={"critic": how.critic.model_copy(update={"path": str(critic)})})
    own = params.reward.judge
    judge: Judge | None = None
    if reward_model is not None or process_reward_model is not None:
        scorer = load_scorer(reward_model or process_reward_model or "", params.model, backend.device)
        judge = (
            reward_model_judge(scorer, own, tokenizer.eos_token_id, how.tokens_per_microbatch)
            if reward_model is not None
            else process_judge(scorer, own, tokenizer, params.reward.steps, how.tokens_per_microbatch)
        )
    elif own.continuations:
        judge = continuations_judge(sampler, problems, build_reward(params.reward), how, own, params.reward.steps, seed)
    others = {
        name: load_model(folder, params.model, backend.device).requires_grad_(False)
        for name, folder in (("reference", reference), ("teacher", teacher))
        if folder is not None
    }

    def open_metrics(resume_after: int | None) -> WatchedSink:
        return WatchedSink(run.open_metrics(resume_after), params.health, how, run.health)

    result = train_rl(
        network, sampler, problems, read_problems(dev), reward, how, seed, backend, run.state,
        open_metrics, judge=judge, **others,
    )  # fmt: skip
    if rank() != 0:
        return
    export_model(
        network,
        tokenizer,
        model,
        f"# RL model of mathrl\n\nTrained from {start} on {len(problems):,} problems: "
        f"{result.steps} steps of {params.rl.prompts_per_step} prompts x {params.rl.group_size} responses, "
        f"seed {params.run.seed}; accuracy on dev problems {result.dev_accuracy or 0.0:.3f} (temperature "
        f"{params.rl.eval_temperature}).\n",
    )
    with written_aside(report) as folder:
        folder.mkdir()
        rows = report_curves(
            run.metrics_file,
            folder,
            run.artifacts / f"{run.name}_curve.png",
            PANELS,
            "Reinforcement learning with verifiable rewards",
        )
        watch = examine(rows, params.health, how)
        write_json(folder / "health.json", watch.report())
        run.health(watch.report())
    for file in data:
        run.dataset("mixture", file)
    run.summary({"dev/accuracy": result.dev_accuracy or 0.0, "sampled_tokens": float(result.sampled_tokens)})


if __name__ == "__main__":
    run_stage("rl", work, inputs=[PROBLEMS, DEV, EXAMPLES, DIFFICULTY, START], outputs=[MODEL, REPORT])
