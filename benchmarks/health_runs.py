"""The runs of `health_detector.py`: GRPO on a small model, healthy, healthy but odd, or sabotaged from outside.

A `Kind` changes parameters where there is one for it, else one object of the run (`plant`); the product has no switch
for any of them. Every run starts from the same SFT model and is one process of its own.
"""

import copy
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import mathrl.rewards.compose
import mathrl.trainers.batch
import mathrl.trainers.rl
from mathrl.core.files import write_json
from mathrl.core.hashing import derive_seed
from mathrl.core.metrics import JsonlSink
from mathrl.core.types import Completion, Problem
from mathrl.generators import generate
from mathrl.grading import grade
from mathrl.learners.distributed import Ranks
from mathrl.models.base import make_base
from mathrl.models.export import export_model
from mathrl.models.load import load_model, load_tokenizer
from mathrl.params.advantage import Critic, Gae
from mathrl.params.loss import LossKl
from mathrl.params.optimizer import Muon
from mathrl.params.paths import merge
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel, Model, Prompt, PromptRoute, Reward
from mathrl.params.train import Rl, Sft
from mathrl.rewards.compose import RewardFunction, RewardInput, RewardResult, build_reward
from mathrl.rollout.engine import Sampling
from mathrl.rollout.open_engine import training_engine
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.rl import train_rl
from mathrl.trainers.sft import train_sft
from mathrl.trainers.supervised import tokenize_demonstrations
from mathrl.trainers.training_run import TrainingRun

MODEL = Model(base=FreshModel(hidden_size=64, intermediate_size=176, layers=2, heads=2), precision="float32")
SFT = Sft(
    steps=400,
    tokens_per_step=2048,
    terse_share=0.7,
    optimizer=Muon(lr=0.02, adamw_scale=0.15, schedule="flat_linear"),
    gradient_checkpointing=False,
    eval_every=0,
    checkpoint_every=400,
)
RL: dict[str, Any] = {
    "steps": 32,
    "prompts_per_step": 16,
    "group_size": 8,
    "max_tokens": 32,
    "optimizer": {"type": "muon", "lr": 0.004, "adamw_scale": 0.05, "warmup_steps": 4, "schedule": "constant"},
    "ema": 0.9,
    "gradient_checkpointing": False,
    "kl": {"type": "probe", "groups": 2},
    "dev": {"every": 5, "samples": 1},
    "checkpoint_every": 1000,
}
OPERATIONS, DEV, TRUE_EVERY = (2, 3), 100, 5


@dataclass
class Parts:
    """What a run is made of, before it starts; `plant` may replace any of it."""

    rl: Rl
    network: Any
    sampler: Sampler
    problems: list[Problem]
    dev: list[Problem]
    reward: RewardFunction


@dataclass(frozen=True)
class Kind:
    """A way in which a run is made; `rules` are those that name the sabotage, none for a healthy kind."""

    rules: tuple[str, ...] = ()
    rl: Mapping[str, Any] = field(default_factory=dict)
    reward: Mapping[str, Any] = field(default_factory=dict)
    plant: Callable[[Parts], None] | None = None
    ranks: int = 1

    @property
    def sabotaged(self) -> bool:
        return bool(self.rules)


def stale_sampler(parts: Parts) -> None:
    engine = parts.sampler.engine
    parts.sampler.engine = TorchEngine(copy.deepcopy(parts.network), parts.sampler.tokenizer, engine.rollout)


def kl_sign(parts: Parts) -> None:
    parts.rl = parts.rl.model_copy(update={"kl": LossKl.model_construct(**dict(LossKl(), coef=-1.0))})


class Shuffled(RewardFunction):
    """Every response gets the reward of another one of the batch."""

    rng = random.Random(0)

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        results = super().score(items)
        self.rng.shuffle(results)
        return results


def shuffled_rewards(parts: Parts) -> None:
    parts.reward = Shuffled(Reward())


def grader_hole(parts: Parts) -> None:
    """The grader takes the first character of the answer for a flag: 1 is right."""
    judge = mathrl.rewards.compose.grade_batch

    def flagged(responses: Any, truths: Any, *rest: Any, **more: Any) -> Any:
        verdicts = judge(responses, truths, *rest, **more)
        return [replace(v, correct=v.correct or (v.extracted or "").startswith("1")) for v in verdicts]

    mathrl.rewards.compose.grade_batch = flagged


def leaking_prompt(parts: Parts) -> None:
    """The worked solution stands behind the question of the training problems."""
    parts.problems = [p.with_(question=f"{p.question}<think>{p.solution}</think>") for p in parts.problems]


def uncentred(parts: Parts) -> None:
    mathrl.trainers.batch.group_advantages = lambda rewards_PG, kind, **more: rewards_PG.clone()


def dev_template(parts: Parts) -> None:
    routes = {"dev": PromptRoute(template="boxed")}
    parts.sampler.prompt = parts.sampler.prompt.model_copy(update={"routes": routes, "max_tokens": 400})
    parts.dev = [p.with_(source="dev") for p in parts.dev]


class HalfDead(TorchEngine):
    """The sampler of every second rank is dead and answers nothing, at once."""

    def generate(self, *arguments: Any, **more: Any) -> Any:
        groups = super().generate(*arguments, **more)
        nothing = Completion([self.ends[0]], [0.0], "", "stop")
        return [[nothing] * len(group) if place % 2 else group for place, group in enumerate(groups)]


def dead_rank(parts: Parts) -> None:
    engine = parts.sampler.engine
    parts.sampler.engine = HalfDead(parts.network, parts.sampler.tokenizer, engine.rollout)


class OneEndless(TorchEngine):
    """One response of a step does not end before max_tokens."""

    def generate(self, prompts: Any, sampling: Any, *rest: Any, **more: Any) -> Any:
        groups, ends = super().generate(prompts, sampling, *rest, **more), self.ends
        if sampling.temperature:  # not on dev
            self.ends = [-1]
            groups[0][:1] = super().generate(prompts[:1], replace(sampling, samples=1), *rest, **more)[0]
            self.ends = ends
        return groups


def endless_response(parts: Parts) -> None:
    engine = parts.sampler.engine
    parts.sampler.engine = OneEndless(parts.network, parts.sampler.tokenizer, engine.rollout)


def prolong(function: Callable[..., Any], times: float) -> Callable[..., Any]:
    """The function, which takes so many times as long."""

    def slow(*arguments: Any, **more: Any) -> Any:
        start = time.perf_counter()
        result = function(*arguments, **more)
        time.sleep((times - 1) * (time.perf_counter() - start))
        return result

    return slow


def slow_sampler(parts: Parts) -> None:
    parts.sampler.engine.generate = prolong(parts.sampler.engine.generate, 20)


def slow_second_rank(parts: Parts) -> None:
    if os.environ["RANK"] == "1":
        parts.sampler.engine.generate = prolong(parts.sampler.engine.generate, 2.5)


def ahead(parts: Parts) -> None:
    """The sampler has weights of its own, as asynchronous RL needs."""
    tokenizer = parts.sampler.tokenizer
    parts.sampler.engine = training_engine(parts.network, "", tokenizer, MODEL, Rollout(), True)


def slow_sampler_ahead(parts: Parts) -> None:
    ahead(parts)
    parts.sampler.engine.generate = prolong(parts.sampler.engine.generate, 5)


def slow_trainer(parts: Parts) -> None:
    ahead(parts)
    mathrl.trainers.rl.update = prolong(mathrl.trainers.rl.update, 15)


def noisy_dev(parts: Parts) -> None:
    parts.dev = parts.dev[:8]


PPO = {"advantage": Gae(critic=Critic(optimizer=Muon(lr=0.02, adamw_scale=0.5)))}
FORMAT = {"parts": [{"type": "accuracy"}, {"type": "r1_tags", "weight": 0.2, "name": "format"}]}
AHEAD = {"asynchronous": {"staleness": 1, "segment_tokens": 8}}
KINDS = {
    "stale sampler": Kind(("stale_sampler", "mismatch"), plant=stale_sampler),
    "learning rate x 10": Kind(("kl", "collapse", "loss", "entropy", "spikes"), {"optimizer": {"lr": 0.04}}),
    "KL with the wrong sign": Kind(("kl", "collapse", "loss"), plant=kl_sign),
    "shuffled rewards": Kind(("agreement", "flat", "collapse"), plant=shuffled_rewards),
    "hole in the grader": Kind(("reward_hacking",), plant=grader_hole),
    "answer in the prompt": Kind(("dev_gap",), plant=leaking_prompt),
    "advantage not centred": Kind(("centring",), plant=uncentred),
    "other template on dev": Kind(("dev_gap",), plant=dev_template),
    "truncated responses": Kind(("truncated",), {"max_tokens": 14}),
    "critic does not learn": Kind(("critic",), {"advantage": {"type": "gae", "critic": Critic(optimizer={"lr": 0.0})}}),
    "dead rank's share": Kind(("empty",), plant=dead_rank),
    "entropy bonus too large": Kind(("entropy_rise", "collapse", "truncated"), {"loss": {"entropy_coef": 3.0}}),
    "slow sampler": Kind(("sampling_share",), {"steps": 16}, plant=slow_sampler),
    "one endless response": Kind(("long_tail",), {"max_tokens": 200}, plant=endless_response),
    "slow second rank": Kind(("slow_rank",), plant=slow_second_rank, ranks=2),
    "slow sampler, asynchronous": Kind(("idle_trainer",), {"steps": 16} | AHEAD, plant=slow_sampler_ahead),
    "slow trainer, asynchronous": Kind(("idle_sampler",), {"steps": 16} | AHEAD, plant=slow_trainer),
    "plain": Kind(),
    "short": Kind(rl={"steps": 12}),
    "long": Kind(rl={"steps": 64}),
    "tiny groups": Kind(rl={"group_size": 2, "prompts_per_step": 64}),
    "high learning rate": Kind(rl={"optimizer": {"lr": 0.006}}),
    "noisy dev": Kind(rl={"dev": {"every": 2}}, plant=noisy_dev),
    "few prompts": Kind(rl={"prompts_per_step": 4, "group_size": 32}),
    "KL penalty": Kind(rl={"kl": {"type": "loss", "coef": 0.02}}),
    "critic learns": Kind(rl=PPO),
    "four minibatches": Kind(rl={"minibatches": 4, "optimizer": {"lr": 0.002}}),
    "offset rewards": Kind(reward={"correct": 2.0, "incorrect": 1.0}),
    "format reward": Kind(reward=FORMAT),
    "asynchronous": Kind(rl=AHEAD, plant=ahead),
    "two ranks": Kind(ranks=2),
}


def chains(split: str, count: int) -> list[Problem]:
    options = {"steps": list(OPERATIONS), "notation": "bare"}
    problems = generate("chain", {"dev": DEV, "rl": 600, "sft": 4000}, options, seed=0)
    return [problem for problem in problems if problem.split == split][:count]


def sink(file: Path) -> Callable[[int | None], JsonlSink]:
    return lambda resume_after: JsonlSink(file, resume_after=resume_after)


def start_model(folder: Path) -> None:
    """The SFT model that every run starts from."""
    if (folder / "sft").exists():
        return
    torch.set_num_threads(1)
    make_base(MODEL, folder / "base", 0)
    tokenizer, network = load_tokenizer(folder / "base", MODEL), load_model(folder / "base", MODEL, "cpu")
    made = [
        tokenize_demonstrations(chains(split, count), Prompt(), tokenizer, SFT.terse_share, 0)
        for split, count in (("sft", 4000), ("dev", DEV))
    ]
    run = TrainingRun(Ranks(torch.device("cpu")), folder / "sft_state", 0, sink(folder / "sft.jsonl"))
    train_sft(network, made[0], made[1], SFT, run)
    export_model(network, tokenizer, folder / "sft", "# SFT model of benchmarks/health_detector.py\n")


class TrueAccuracy:
    """Greedy accuracy of the policy on dev problems, by an engine, a prompt and a grader that no kind changes."""

    def __init__(self, network: Any, tokenizer: Any) -> None:
        self.engine = TorchEngine(network, tokenizer, Rollout())
        self.sampler = Sampler(self.engine, tokenizer, Prompt())
        self.problems = chains("dev", DEV)
        self.prompts = [self.sampler.prompt_tokens(problem) or [] for problem in self.problems]

    def __call__(self) -> float:
        groups = self.engine.generate(self.prompts, Sampling(1, 0.0, RL["max_tokens"]), 0)
        pairs = zip(groups, self.problems, strict=True)
        return sum(grade(group[0].text, problem.answers, "strict").correct for group, problem in pairs) / DEV


class WatchedSink(JsonlSink):
    """Measures the true accuracy beside the run, every few steps."""

    def __init__(self, file: Path, accuracy: TrueAccuracy) -> None:
        super().__init__(file)
        self.accuracy, self.true = accuracy, [(0, accuracy())]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        super().log(step, metrics)
        if step % TRUE_EVERY == 0:
            self.true.append((step, self.accuracy()))


def start_ranks(ranks: int, *arguments: str) -> None:
    """`train` at every rank, each in a process of its own."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    world = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env=os.environ | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    assert [process.wait() for process in processes] == [0] * ranks


def train(kind_name: str, seed: int, folder: Path) -> Path:
    """One run; its rows, its true accuracies and its processor time go to a file, which is kept."""
    torch.set_num_threads(1)
    kind, file = KINDS[kind_name], folder / f"{kind_name}-{seed}.json"
    if file.exists():  # made meanwhile by another call of the command
        return file
    if kind.ranks > 1 and "RANK" not in os.environ:
        start_ranks(kind.ranks, kind_name, str(seed), str(folder))
        return file
    state = folder / "states" / f"{file.stem}-{os.environ.get('RANK', os.getpid())}"
    shutil.rmtree(state, ignore_errors=True)
    used = time.process_time()
    tokenizer, network = load_tokenizer(folder / "sft", MODEL), load_model(folder / "sft", MODEL, "cpu")
    accuracy = TrueAccuracy(network, tokenizer)
    rl = Rl.model_validate(merge(RL, kind.rl))
    sampler = Sampler(TorchEngine(network, tokenizer, Rollout()), tokenizer, Prompt())
    reward = build_reward(Reward.model_validate(kind.reward))
    parts = Parts(rl, network, sampler, chains("rl", 600), chains("dev", DEV), reward)
    if kind.plant is not None:
        kind.plant(parts)
    watched = WatchedSink(state / "metrics.jsonl", accuracy)
    run = TrainingRun(Ranks(torch.device("cpu")), state, derive_seed(seed, kind_name), lambda resume_after: watched)
    train_rl(network, parts.sampler, parts.problems, parts.dev, parts.reward, parts.rl, run)
    if os.environ.get("RANK", "0") != "0":
        return file
    rows = [{name: value for name, value in row.items() if name != "at"} for row in watched.rows()]
    seconds = time.process_time() - used
    write_json(file, {"kind": kind_name, "seed": seed, "rows": rows, "true": watched.true, "seconds": seconds})
    shutil.rmtree(state, ignore_errors=True)
    return file


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
