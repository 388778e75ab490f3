"""Do pass rates fall with a generator's levels? `python benchmarks/generator_levels.py [word_problem …] [--steps 800]`.

The demo's model is fine-tuned from random weights on a generator's worked solutions, 500 of each level. Its pass rate
on 60 other problems of each level is measured by the demo's grader (4 responses per problem, temperature 0.7; an
interval takes each problem's responses as one). A model of half a million parameters learns some of it: what counts is
the order of the levels, not the height. Training resumes, and a finished generator is kept in .mathrl/generator_levels.
"""

import argparse
import itertools
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mathrl.compose import load_params
from mathrl.core.files import read_json, write_json
from mathrl.core.metrics import JsonlSink
from mathrl.core.results import Interval
from mathrl.evaluation.spread import cluster_interval
from mathrl.generators import GENERATORS, generate, make_generator
from mathrl.learners.distributed import Ranks
from mathrl.models.base import make_base
from mathrl.models.load import load_model, load_tokenizer
from mathrl.rewards.compose import build_reward
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.sft import train_sft
from mathrl.trainers.supervised import tokenize_demonstrations
from mathrl.trainers.training_run import TrainingRun

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".mathrl/generator_levels"
TRAIN_PER_LEVEL, TEST_PER_LEVEL, SAMPLES = 500, 60, 4
MAX_PROMPT, MAX_TOKENS = 640, 480  # characters; the longest worked solution, a power modulo n, has some 450
# Small numbers, so that a model of this size learns some of it.
OPTIONS: dict[str, dict[str, Any]] = {
    "countdown": {"largest_number": 10, "largest_target": 30},
    "fractions": {"largest_denominator": 8},
    "product": {"calls": 0},
}


def measure(generator: str, steps: int) -> dict[str, list[float]]:
    """The pass rate of each test problem by level."""
    params = load_params(ROOT / "params")
    base = FOLDER / "base"
    if not base.exists():
        make_base(params.model, base, 0)
    prompt = params.prompt.model_copy(update={"max_tokens": MAX_PROMPT})
    tokenizer, network = load_tokenizer(base, params.model), load_model(base, params.model, "cpu")
    options = OPTIONS.get(generator, {})
    levels = len(make_generator(generator, options).levels)
    counts = {"sft": TRAIN_PER_LEVEL * levels, "dev": 20, "test": TEST_PER_LEVEL * levels}
    problems = list(generate(generator, counts, options, seed=0))
    sft = params.sft.model_copy(update={"steps": steps, "eval_every": 0, "checkpoint_every": 50})
    splits = {split: [problem for problem in problems if problem.split == split] for split in counts}
    made = [tokenize_demonstrations(splits[split], prompt, tokenizer, 0.0, 0) for split in ("sft", "dev")]
    state = FOLDER / f"{generator}-{steps}"
    log = state / "metrics.jsonl"
    run = TrainingRun(Ranks(torch.device("cpu")), state, 0, lambda after: JsonlSink(log, resume_after=after))
    train_sft(network, made[0], made[1], sft, run)
    sampler = Sampler(TorchEngine(network.eval(), tokenizer, params.rollout), tokenizer, prompt)
    sampling = Sampling(SAMPLES, 0.7, MAX_TOKENS)
    graded = sampler.sample(splits["test"], sampling, build_reward(params.reward), 0)
    rates: dict[str, list[float]] = {}
    for problem, group in zip(splits["test"], graded, strict=True):
        assert group is not None, f"the prompt of {problem.id} is longer than {MAX_PROMPT} tokens"
        rate = statistics.mean(response.correct for response in group)
        rates.setdefault(str(problem.level), []).append(rate)
    return dict(sorted(rates.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("generators", nargs="*", default=sorted({*GENERATORS} - {"reasoning_gym"}))
    parser.add_argument("--steps", type=int, default=800)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| generator | pass rate by level | rises |\n|---|---|---|")
    for generator in options.generators:
        if generator not in GENERATORS:
            parser.error(f"no generator {generator!r}; there are {', '.join(sorted(GENERATORS))}")
        file = FOLDER / f"{generator}-{options.steps}.json"
        if not file.exists():
            write_json(file, measure(generator, options.steps))
        found = {level: cluster_interval(rates) for level, rates in read_json(file).items()}
        cells = "; ".join(f"{level}: {interval}" for level, interval in found.items())
        print(f"| {generator} | {cells} | {'; '.join(rises(found)) or 'none'} |", flush=True)


def rises(found: Mapping[str, Interval]) -> list[str]:
    """Neighbouring levels of which the harder one has the higher pass rate, and whether their intervals overlap."""
    return [
        f"{easier} to {harder}, {'clearly' if found[harder].low > found[easier].high else 'within the intervals'}"
        for easier, harder in itertools.pairwise(found)
        if found[harder].mean > found[easier].mean
    ]


if __name__ == "__main__":
    main()
