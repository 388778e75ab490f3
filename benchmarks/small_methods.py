"""What methods beyond GRPO do on a small model: `python benchmarks/small_methods.py QUESTION [--seeds 0 1 2]`.

A model of 60,000 weights learns chains of two or three operations from worked solutions, badly, and then by RL. Each
question compares arms of equal steps with its first one, from one start per seed. Accuracy is on other problems, as the
mean over the last evaluations; --figure names another metric. A finished run is kept in .mathrl/small_methods and not
repeated. Intervals are 95 % by Student's t over the seeds; a difference is shown where its interval leaves out 0, else
the line says so.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mathrl.compose import load_params
from mathrl.core.files import read_json, write_json
from mathrl.core.metrics import JsonlSink
from mathrl.core.types import Problem
from mathrl.evaluation.spread import cluster_interval
from mathrl.generators import generate
from mathrl.learners.distributed import Ranks
from mathrl.models.base import make_base
from mathrl.models.export import export_model
from mathrl.models.load import load_model, load_tokenizer
from mathrl.params import Params
from mathrl.params.advantage import Distillation
from mathrl.params.paths import merge
from mathrl.params.train import Rl
from mathrl.rewards.compose import build_reward
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.open_rl import Helpers
from mathrl.trainers.rl import train_rl
from mathrl.trainers.sft import train_sft
from mathrl.trainers.supervised import tokenize_demonstrations
from mathrl.trainers.training_run import TrainingRun

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".mathrl/small_methods"
SFT_STEPS, TEACHER_STEPS, STEPS, LAST = 120, 600, 30, 3  # the accuracy is a mean over the last so many evaluations
COMMON = {
    "steps": STEPS, "prompts_per_step": 8, "group_size": 8, "max_tokens": 24, "optimizer": {"lr": 0.005},
    "dev": {"every": 5, "samples": 3}, "checkpoint_every": STEPS,
}  # fmt: skip
Problems = Callable[[Sequence[Problem]], list[Problem]]


@dataclass(frozen=True)
class Arm:
    """Changes of the section rl, parts of the reward, and what is changed in the problems that are trained on."""

    rl: Mapping[str, Any] = field(default_factory=dict)
    parts: Sequence[Mapping[str, Any]] = ({"type": "accuracy"},)
    problems: Problems = list


def ppo(lam: Any, critic: Mapping[str, Any], **more: Any) -> Arm:
    """PPO with these lambdas."""
    critic = {"optimizer": {"type": "adamw", "lr": 1e-3}, **critic}
    return Arm({"advantage": {"type": "gae", "lam": lam, "whiten": True, "critic": critic}, **more})


def distillation(loss: Any) -> Arm:
    """On-policy distillation from one teacher, which solves six of ten problems."""
    return Arm({"advantage": "distillation", "loss": loss})


QUESTIONS: dict[str, dict[str, Arm]] = {
    "critic": {
        "PPO, lambda 0.9": ppo(0.9, {}),
        "the critic's lambda 1 (VC-PPO)": ppo(0.9, {"lam": 1.0}),
        "and by length, alpha 0.8 (VAPO)": ppo({"alpha": 0.8}, {"lam": 1.0}),
        "and 5 steps of value pre-training": ppo({"alpha": 0.8}, {"lam": 1.0, "warmup_steps": 5}, steps=STEPS + 5),
    },
    "experts": {
        "GRPO": Arm(),
        "and right samples imitated (VAPO)": Arm({"imitation": {"type": "own", "coef": 0.1}}),
        "the solution in the group (LUFFY)": Arm({"imitation": "luffy"}),
        "0.1 of the SFT loss (CHORD)": Arm({"imitation": {"type": "sft", "coef": 0.1}}),
    },
    "teacher": {
        "the sampled token's log-prob": distillation("reinforce"),
        "forward KL over 16 tokens": distillation({"type": "forward_kl", "top_k": 16}),
        "reverse KL over 16 tokens": distillation({"type": "reverse_kl", "top_k": 16}),
        "JSD over 16 tokens": distillation({"type": "jsd", "top_k": 16}),
    },
    "labels": {
        "GRPO with answers": Arm(),
        "by the group's vote (TTRL)": Arm(
            parts=({"type": "majority"},), problems=lambda all: [problem.with_(answers=()) for problem in all]
        ),
    },
}


def chains(split: str) -> list[Problem]:
    """Chains of two or three operations: those of the split, which no other split has."""
    counts, options = {"sft": 500, "rl": 200, "dev": 60}, {"steps": [2, 3], "notation": "bare"}
    return [problem for problem in generate("chain", counts, options, seed=0, name="chain") if problem.split == split]


def more_chains() -> list[Problem]:
    """6,000 such chains for a teacher, none of them one of the above."""
    known = {problem.question for split in ("rl", "dev") for problem in chains(split)}
    made = generate("chain", {"sft": 6000}, {"steps": [2, 3], "notation": "bare"}, seed=1, name="more")
    return [problem for problem in made if problem.question not in known]


def sft_model(params: Params, seed: int, name: str = "sft") -> Path:
    """The SFT model that the seed's runs start from; named teacher, one that has learned more problems for longer."""
    base, folder = FOLDER / f"base-{seed}", FOLDER / f"{name}-{seed}"
    if folder.exists():
        return folder
    if not base.exists():
        make_base(params.model, base, seed)
    tokenizer, network = load_tokenizer(base, params.model), load_model(base, params.model, "cpu")
    steps, problems = (SFT_STEPS, chains("sft")) if name == "sft" else (TEACHER_STEPS, more_chains())
    sft = params.sft.model_copy(update={"steps": steps, "eval_every": 0, "tokens_per_step": 2048})
    made = [
        tokenize_demonstrations(part, params.prompt, tokenizer, sft.terse_share, seed)
        for part in (problems, chains("dev"))
    ]
    run = TrainingRun(
        Ranks(torch.device("cpu")), FOLDER / f"{name}_state-{seed}", seed, sink(FOLDER / f"{name}-{seed}.jsonl")
    )
    train_sft(network, made[0], made[1], sft, run)
    export_model(network, tokenizer, folder, "# SFT model of benchmarks/small_methods.py\n")
    return folder


def sink(file: Path) -> Any:
    return lambda resume_after: JsonlSink(file, resume_after=resume_after)


def run_arm(params: Params, question: str, arm: Arm, name: str, seed: int) -> dict[str, Any]:
    """The evaluations of one run, and the means of its other metrics over the last ten steps."""
    start = sft_model(params, seed)
    tokenizer, network = load_tokenizer(start, params.model), load_model(start, params.model, "cpu")
    sampler = Sampler(TorchEngine(network, tokenizer, params.rollout), tokenizer, params.prompt)
    dev, trained = chains("dev"), chains("rl")
    rl = Rl.model_validate(merge(merge(params.rl.model_dump(), COMMON), arm.rl))
    state = FOLDER / "states" / f"{question}-{name}-{seed}"
    run = TrainingRun(Ranks(torch.device("cpu")), state, seed, sink(state / "metrics.jsonl"))
    reward = build_reward({**params.reward.model_dump(), "parts": list(arm.parts)})
    teacher = None
    if isinstance(rl.advantage, Distillation):
        teacher = load_model(sft_model(params, 0, "teacher"), params.model, "cpu").requires_grad_(False)
    train_rl(network, sampler, arm.problems(trained), dev, reward, rl, run, Helpers(teacher=teacher))
    rows = [json.loads(line) for line in (state / "metrics.jsonl").read_text().splitlines()]
    names = sorted({name for row in rows[-10:] for name in row})
    last = {name: statistics.mean(row[name] for row in rows[-10:] if name in row) for name in names}
    return {"accuracy": [row["dev/accuracy"] for row in rows if "dev/accuracy" in row], "last": last}


def with_interval(values: Sequence[float], sign: str = "") -> str:
    found = cluster_interval(list(values), share=False)
    interval = f" [{found.low:{sign}.3f}, {found.high:{sign}.3f}]" if len(values) > 1 else ""
    shown = ", no difference shown" if sign and not (found.low > 0 or found.high < 0) else ""
    return f"{found.mean:{sign}.3f}{interval}{shown}"


def table(question: str, seeds: Sequence[int], figure: str | None) -> None:
    measured = f"{figure}, mean of the last 10 steps" if figure else f"dev accuracy, mean of the last {LAST}"
    print(f"| {question}, {len(seeds)} seeds | {measured} | against the first |\n|---|---|---|")
    first: list[float] = []
    for name in QUESTIONS[question]:
        results = [read_json(FOLDER / f"{question}-{name}-{seed}.json") for seed in seeds]
        values = [
            result["last"][figure] if figure else statistics.mean(result["accuracy"][-LAST:]) for result in results
        ]
        against = with_interval([a - b for a, b in zip(values, first, strict=True)], "+") if first else ""
        first = first or values
        print(f"| {name} | {with_interval(values)} | {against} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", choices=list(QUESTIONS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--figure", help="Another metric than the dev accuracy, such as distillation/reverse_kl.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    params = load_params(ROOT / "params", overrides=["model.base.hidden_size=48", "model.base.layers=2"])
    for seed in options.seeds:
        for name, arm in QUESTIONS[options.question].items():
            file = FOLDER / f"{options.question}-{name}-{seed}.json"
            if not file.exists():
                write_json(file, run_arm(params, options.question, arm, name, seed))
                print(file.stem, read_json(file)["accuracy"], flush=True)
    table(options.question, options.seeds, options.figure)


if __name__ == "__main__":
    main()
