"""What a curriculum saves in samples: `python benchmarks/curriculum.py [--seeds 0 1 2 3 4]`.

GRPO of the demo's model on a mixture of two fifths chains of one operation, which the SFT model solves (trivial), two
fifths chains whose accepted answer is wrong (unsolvable) and one fifth chains of 2 to 6 operations. All runs start from
one SFT model and take the same number of steps of 8 prompts; accuracy is on other chains of 2 to 6 operations. A
finished run is kept in .mathrl/curriculum and not repeated, so the command can be stopped and started at any time; the
tables are of what is finished. Responses and processor time count, not wall time: other jobs may run beside it.

Intervals are 95 % by Student's t over the seeds. The second table compares each run with the shuffled run of its seed.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from mathrl.compose import load_params
from mathrl.core.files import read_json, write_json
from mathrl.core.metrics import JsonlSink
from mathrl.core.types import Graded, Problem
from mathrl.evaluation.spread import cluster_interval
from mathrl.generators import generate
from mathrl.learners.checkpoint import CheckpointFolder
from mathrl.learners.distributed import Ranks
from mathrl.models.base import make_base
from mathrl.models.export import export_model
from mathrl.models.load import load_model, load_tokenizer
from mathrl.params import Params
from mathrl.params.curriculum import AdaptiveSamples, PassRate, PoolCurriculum
from mathrl.params.paths import merge
from mathrl.params.train import DynamicSampling, Rl
from mathrl.rewards.compose import build_reward
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.rl import train_rl
from mathrl.trainers.sft import train_sft
from mathrl.trainers.supervised import tokenize_demonstrations
from mathrl.trainers.training_run import TrainingRun

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".mathrl/curriculum"
SFT_STEPS, STEPS, PROMPTS, GROUP = 350, 80, 8, 8
USELESS, USEFUL = 400, 200  # problems of each kind
LEVELS = (0.6, 0.7, 0.75)
COSTLY = "shuffled, dynamic sampling (DAPO)"  # last
POOLS = PoolCurriculum()
ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "pass_rate": {"curriculum": PassRate()},
    "pools": {"curriculum": POOLS},
    "pools, adaptive": {"curriculum": POOLS.model_copy(update={"adaptive": AdaptiveSamples(least=4, most=16)})},
    COSTLY: {"dynamic_sampling": DynamicSampling(rounds=3)},
}


class CountingSampler(Sampler):
    """Notes how many training responses had been sampled at each evaluation."""

    training_temperature = 1.0
    responses = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.at_evaluation: list[int] = []

    def sample(self, problems: Sequence[Problem], sampling: Any, *rest: Any, **more: Any) -> list[list[Graded] | None]:
        if sampling.temperature == self.training_temperature:
            self.responses += len(problems) * sampling.samples
        else:
            self.at_evaluation.append(self.responses)
        return super().sample(problems, sampling, *rest, **more)


def chains(steps: Sequence[int], name: str, **counts: int) -> list[Problem]:
    options = {"steps": list(steps), "notation": "bare"}
    return list(generate("chain", counts, options, seed=0, name=name))


def start_model(params: Params) -> Path:
    """The SFT model that every run starts from."""
    base, folder = FOLDER / "base", FOLDER / "sft"
    if folder.exists():
        return folder
    make_base(params.model, base, 0)
    tokenizer, network = load_tokenizer(base, params.model), load_model(base, params.model, "cpu")
    sft = params.sft.model_copy(update={"steps": SFT_STEPS, "eval_every": 0})
    problems = [*chains([1], "sft1", sft=150) * 8, *chains(range(2, 7), "sft", sft=6000, dev=50)]
    made = [
        tokenize_demonstrations([p for p in problems if p.split == split], params.prompt, tokenizer, sft.terse_share, 0)
        for split in ("sft", "dev")
    ]
    run = TrainingRun(Ranks(torch.device("cpu")), FOLDER / "sft_state", 0, sink(FOLDER / "sft.jsonl"))
    print(train_sft(network, made[0], made[1], sft, run))
    export_model(network, tokenizer, folder, "# SFT model of benchmarks/curriculum.py\n")
    return folder


def sink(file: Path) -> Any:
    return lambda resume_after: JsonlSink(file, resume_after=resume_after)


def one(params: Params, order: str, seed: int) -> dict[str, Any]:
    """Accuracy at each evaluation, with the responses sampled until then."""
    start = start_model(params)
    tokenizer, network = load_tokenizer(start, params.model), load_model(start, params.model, "cpu")
    sampler = CountingSampler(TorchEngine(network, tokenizer, params.rollout), tokenizer, params.prompt)
    unsolvable = [
        replace(problem, answers=(str(int(problem.answers[0]) + 1000),))
        for problem in chains(range(2, 7), "unsolvable", rl=USELESS)
    ]
    useful = chains(range(2, 7), "useful", rl=USEFUL, dev=100)
    dev = [problem for problem in useful if problem.split == "dev"]
    mixture = [*chains([1], "trivial", rl=100) * (USELESS // 100), *(p for p in useful if p.split == "rl"), *unsolvable]
    mixture = [replace(problem, id=f"{problem.id}/{number}") for number, problem in enumerate(mixture)]
    settings = {
        "steps": STEPS,
        "prompts_per_step": PROMPTS,
        "group_size": GROUP,
        "dev": {"every": 8, "samples": 3},
        "optimizer": {"lr": 0.005},
        "checkpoint_every": STEPS,
    }
    rl = Rl.model_validate(merge(params.rl.model_dump(), settings))
    rl = rl.model_copy(update=ORDERS[order])
    state = FOLDER / "states" / f"{order}-{seed}"
    run = TrainingRun(Ranks(torch.device("cpu")), state, seed, sink(state / "metrics.jsonl"))
    used = time.process_time()
    train_rl(network, sampler, mixture, dev, build_reward(params.reward), rl, run)
    used = time.process_time() - used
    rows = [json.loads(line) for line in (state / "metrics.jsonl").read_text().splitlines()]
    saved = CheckpointFolder(state / "checkpoints").latest()
    return {
        "responses": sampler.at_evaluation,
        "accuracy": [row["dev/accuracy"] for row in rows if "dev/accuracy" in row],
        "uniform": statistics.mean(row["rollout/zero_variance_share"] for row in rows),
        "seconds": used,
        "calibration": saved.values["order"].get("calibration") if saved is not None else None,
        "last": {name: value for name, value in rows[-1].items() if name.startswith("curriculum/")},
    }


def responses_to(result: dict[str, Any], level: float) -> float | None:
    """Responses sampled until the accuracy first reached the level, between two evaluations in proportion."""
    before, count = 0.0, 0
    for accuracy, responses in zip(result["accuracy"], result["responses"], strict=True):
        if accuracy >= level:
            share = (level - before) / (accuracy - before) if before else 1.0
            return count + share * (responses - count)
        before, count = accuracy, responses
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--orders", nargs="+", choices=list(ORDERS), default=list(ORDERS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    params = load_params(ROOT / "params")
    for seed, order in sorted(product(options.seeds, options.orders), key=lambda run: run[1] == COSTLY):
        file = FOLDER / f"{order}-{seed}.json"
        if not file.exists():
            write_json(file, one(params, order, seed))
            print(file.stem, json.dumps(read_json(file)), flush=True)
    runs = {order: finished(order) for order in ORDERS}
    runs = {order: of_seed for order, of_seed in runs.items() if of_seed}
    table(runs)
    savings(runs)
    reliability()


def finished(order: str) -> dict[int, dict[str, Any]]:
    """The results of an order by seed."""
    files = FOLDER.glob(f"{order}-[0-9]*.json")
    return {int(file.stem.rpartition("-")[2]): read_json(file) for file in sorted(files)}


def table(runs: Mapping[str, Mapping[int, dict[str, Any]]]) -> None:
    heads = [f"responses to {level:.0%}" for level in LEVELS]
    print(f"| order | seeds | {' | '.join(heads)} | final accuracy | uniform groups | responses | CPU s |")
    print("|---" * (6 + len(heads)) + "|")
    for order, of_seed in runs.items():
        results = list(of_seed.values())
        cells = []
        for level in LEVELS:
            reached = [count for count in (responses_to(result, level) for result in results) if count is not None]
            if len(reached) == len(results):
                cells.append(with_interval(reached, ",.0f"))
            else:  # no interval: the seeds that reached it are the faster ones
                some = f"{statistics.mean(reached):,.0f} ({len(reached)} of {len(results)})" if reached else ""
                cells.append(some or "never")
        last = [result["accuracy"][-1] for result in results]
        uniform, responses, seconds = (
            statistics.mean(values)
            for values in (
                [result["uniform"] for result in results],
                [result["responses"][-1] for result in results],
                [result["seconds"] for result in results],
            )
        )
        print(
            f"| {order} | {len(results)} | {' | '.join(cells)} | {with_interval(last, '.3f')} | {uniform:.0%} | "
            f"{responses:,.0f} | {seconds:.0f} |"
        )


def with_interval(values: Sequence[float], format: str) -> str:
    """The mean and, of two values or more, half its interval."""
    found = cluster_interval(values, share=False)
    half = f" ± {(found.high - found.low) / 2:{format.removeprefix('+')}}" if len(values) > 1 else ""
    return f"{found.mean:{format}}{half}"


def savings(runs: Mapping[str, Mapping[int, dict[str, Any]]]) -> None:
    """Against the shuffled run of the same seed: responses to each level, where all reached it, and final accuracy.

    A shuffled run that never reached the level counts with all its responses: what is saved is then at least that.
    """
    print(f"\n| order | seeds | {' | '.join(f'saved to {level:.0%}' for level in LEVELS)} | final accuracy |")
    print("|---" * (3 + len(LEVELS)) + "|")
    shuffled = runs.get("shuffled", {})
    for order, of_seed in runs.items():
        pairs = [(shuffled[seed], result) for seed, result in of_seed.items() if seed in shuffled]
        if order == "shuffled" or not pairs:
            continue
        cells = []
        for level in LEVELS:
            counts = [(responses_to(plain, level), responses_to(result, level)) for plain, result in pairs]
            shares = [
                1 - count / (plain or pair[0]["responses"][-1])
                for (plain, count), pair in zip(counts, pairs, strict=True)
                if count is not None
            ]
            least = "at least " if any(plain is None for plain, _ in counts) else ""
            cells.append(least + with_interval(shares, ".0%") if len(shares) == len(pairs) else "not reached by all")
        better = [result["accuracy"][-1] - plain["accuracy"][-1] for plain, result in pairs]
        print(f"| {order} | {len(pairs)} | {' | '.join(cells)} | {with_interval(better, '+.3f')} |")


def reliability() -> None:
    """Predicted against found pass rates of problems at their first group, over all runs of the pools."""
    sums: dict[str, list[float]] = {}
    for file in sorted(FOLDER.glob("pools-[0-9]*.json")):
        state = read_json(file)["calibration"]
        for name in ("samples_B", "predicted_B", "correct_B"):
            sums[name] = [a + b for a, b in zip(sums.get(name, [0.0] * 10), state[name], strict=True)]
    if not sums:
        return
    print("\n| predicted pass rate | found | responses |\n|---|---|---|")
    error = 0.0
    for samples, predicted, correct in zip(*sums.values(), strict=True):
        if samples:
            print(f"| {predicted / samples:.3f} | {correct / samples:.3f} | {samples:,.0f} |")
            error += abs(predicted - correct)
    print(f"expected calibration error: {error / sum(sums['samples_B']):.3f}")


if __name__ == "__main__":
    main()
