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
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mathrl.core.environment import rank
from mathrl.core.errors import UserError
from mathrl.core.files import read_json
from mathrl.core.problems import read_problems
from mathrl.core.types import Problem
from mathrl.curation.prompt_leaks import check_prompts
from mathrl.data.sft_sets import few_shot_examples
from mathrl.engines.installed import check_installed
from mathrl.engines.verl_process import verl_python
from mathrl.health.watch import HealthMonitor
from mathrl.params.train import Rl
from mathrl.rewards.compose import build_reward
from mathrl.stages.command import main
from mathrl.stages.stage_run import StageRun
from mathrl.stages.training_stage import load_network, load_start, open_training, write_model, write_report

if TYPE_CHECKING:
    from mathrl.trainers.rl import RlResult

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


@dataclass(frozen=True)
class _Inputs:
    """What a training engine is given; `others` are the folders of `work`."""

    start: Path
    problems: Sequence[Problem]
    dev: Sequence[Problem]
    few_shot: Sequence[Problem]
    health: HealthMonitor
    others: Mapping[str, Path]


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
    problems = [problem for file in data for problem in read_problems(file)]
    few_shot = few_shot_examples(params.prompt, examples)
    health = HealthMonitor(params.health, rl, run.health)
    inputs = _Inputs(start, problems, read_problems(dev), few_shot, health, others)
    train = {"mathrl": _train, "trl": _train_with_trl, "verl": _train_with_verl}[rl.engine.type]
    network, tokenizer, result = train(run, inputs)
    measured = result.dev_accuracy is not None
    accuracy = f"{result.dev_accuracy:.3f} (temperature {rl.dev.temperature})" if measured else "not measured"
    card = (
        f"# RL model of mathrl\n\nTrained from {start} on {len(problems):,} problems: "
        f"{result.steps} steps of {rl.prompts_per_step} prompts x {rl.group_size} responses, "
        f"seed {seed}; accuracy on dev problems {accuracy}.\n"
    )
    write_model(network, tokenizer, model, card)
    title = "Reinforcement learning with verifiable rewards"
    kept = finish_rollouts(run, rl)
    files = [file for file in (kept, run.record.events if rl.asynchronous is not None else None) if file is not None]
    write_report(run, report, title, PANELS, {"mixture": data}, summary_of(result), health, files)


def _train(run: StageRun, inputs: _Inputs) -> tuple[Any, Any, RlResult]:
    """The model that mathrl's own loop has trained, its tokenizer, and the run's figures."""
    params, rl, start, others = run.params, run.params.rl, inputs.start, inputs.others
    training = open_training(run, inputs.health, run.rollouts)
    # torch: not before the inputs have been checked.
    from mathrl.models.device import halve_threads, hardware_of
    from mathrl.rollout.choices import stage_longest
    from mathrl.rollout.open_engine import training_engine
    from mathrl.rollout.resolve import resolve_importance, resolve_rollout
    from mathrl.rollout.sampler import Sampler
    from mathrl.trainers.judges import open_judge
    from mathrl.trainers.open_rl import Helpers
    from mathrl.trainers.rl import train_rl

    ranks, longest = training.ranks, stage_longest(params, "rl")
    hardware = hardware_of(ranks.device)
    rollout = resolve_rollout(params.rollout, start, params.model, hardware, longest=longest, ranks=ranks.world)
    rl = resolve_importance(rl, rollout)
    run.resolved(rollout, rl)
    if rl.kept_size and rank() == 0:
        print(f"rl.keep_rollouts: {rl.kept_size}", flush=True)
    network, tokenizer = load_start(start, params.model, training)
    at_once = rl.asynchronous is not None and rl.asynchronous.staleness
    if at_once and rollout.engine == "torch" and ranks.device.type == "cpu":
        halve_threads()
    ahead = rl.asynchronous is not None
    engine = training_engine(network, start, tokenizer, params.model, rollout, ahead, rl.lora)
    sampler = Sampler(engine, tokenizer, params.prompt, inputs.few_shot)
    run.check_lengths(inputs.problems, lambda: tokenizer, inputs.few_shot)
    check_prompts([*inputs.problems, *inputs.dev], params.prompt, tokenizer)
    if "critic" in others and rl.critic is not None:
        critic = rl.critic.model_copy(update={"path": str(others["critic"])})
        rl = rl.model_copy(update={"advantage": rl.advantage.model_copy(update={"critic": critic})})
    inputs.health.watch.rl = rl
    frozen = {
        name: load_network(others[name], params.model, training).requires_grad_(False)
        for name in ("reference", "teacher")
        if name in others
    }
    helpers = Helpers(judge=open_judge(params, rl, sampler, inputs.problems, ranks.device, others), **frozen)
    reward = build_reward(params.reward)
    result = train_rl(network, sampler, inputs.problems, inputs.dev, reward, rl, training, helpers)
    return network, tokenizer, result


def _train_with_trl(run: StageRun, inputs: _Inputs) -> tuple[Any, Any, RlResult]:
    """As `_train`, by TRL's GRPOTrainer."""
    check_installed("trl", "rl.engine")
    _refuse_other_models(inputs, "trl")
    # accelerate before transformers, and torch not before the inputs have been checked.
    from mathrl.engines.trl_rl import train_rl_with_trl
    from mathrl.models.load import load_tokenizer

    params, training = run.params, open_training(run, inputs.health)
    run.check_lengths(inputs.problems, lambda: load_tokenizer(inputs.start, params.model), inputs.few_shot)
    run.resolved(
        params.rollout.model_copy(update={"engine": "torch"}), params.rl.model_copy(update={"importance": None})
    )
    return train_rl_with_trl(inputs.start, inputs.problems, inputs.dev, inputs.few_shot, params, training)


def _train_with_verl(run: StageRun, inputs: _Inputs) -> tuple[Any, Any, RlResult]:
    """As `_train`, by verl in a process of its own; this one needs no GPU."""
    python = verl_python()
    _refuse_other_models(inputs, "verl")
    # torch: not before the inputs have been checked.
    from mathrl.engines.verl_rl import train_rl_with_verl
    from mathrl.models.load import load_tokenizer

    params, training = run.params, open_training(run, inputs.health, device="cpu")
    run.check_lengths(inputs.problems, lambda: load_tokenizer(inputs.start, params.model), inputs.few_shot)
    run.resolved(params.rollout.model_copy(update={"engine": "vllm"}), params.rl)
    log = run.record.folder / "verl.log"
    return train_rl_with_verl(inputs.start, inputs.problems, inputs.dev, inputs.few_shot, params, training, python, log)


def _refuse_other_models(inputs: _Inputs, engine: str) -> None:
    """Raises UserError: the run has another model beside the policy."""
    if models := sorted(inputs.others.keys() - {"difficulty"}):
        raise UserError(
            f"rl.engine is {engine}, which takes part in no run with another model ({', '.join(models)}): set "
            "rl.engine to mathrl, or leave the model out of the recipe's step"
        )


def finish_rollouts(run: StageRun, rl: Rl) -> Path | None:
    """The file of the run's kept rollouts; None if it keeps none, or at another rank."""
    if not rl.kept_size or rank() != 0:
        return None
    from mathrl.core.rollout_files import WHOLE, RolloutFolder  # pyarrow: only where rollouts are kept

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
