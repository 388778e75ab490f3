"""Do pass rates fall with a generator's levels? `python benchmarks/generator_levels.py [word_problem …] [--steps 800]`.

The demo's model is fine-tuned from random weights on a generator's worked solutions, all levels alike. Its pass rate
on other problems of each level is measured by the demo's grader (4 responses per problem, temperature 0.7). A model of
half a million parameters learns some of it: what counts is the order of the levels, not the height. Training resumes,
and a finished generator is kept in .mathrl/generator_levels.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch

from mathrl.core.files import read_json, write_json
from mathrl.core.metrics import JsonlSink
from mathrl.core.statistics import wilson
from mathrl.data.generators import GENERATORS, generate
from mathrl.learners.distributed import Ranks
from mathrl.models.base import make_base
from mathrl.models.load import load_model, load_tokenizer
from mathrl.params import load_params
from mathrl.rewards.compose import build_reward
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.demonstrations import tokenize_demonstrations
from mathrl.trainers.sft import train_sft
from mathrl.trainers.training_run import TrainingRun

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".mathrl/generator_levels"
TEST_PER_LEVEL, SAMPLES, MAX_PROMPT, MAX_TOKENS = 60, 4, 640, 160


def measure(generator: str, steps: int) -> dict[str, tuple[int, int]]:
    """Correct responses and responses of each level."""
    params = load_params(ROOT / "params")
    base = FOLDER / "base"
    if not base.exists():
        make_base(params.model, base, 0)
    prompt = params.prompt.model_copy(update={"max_tokens": MAX_PROMPT})
    tokenizer, network = load_tokenizer(base, params.model), load_model(base, params.model, "cpu")
    counts = {"sft": 12 * steps, "dev": 20, "test": 5 * TEST_PER_LEVEL}
    problems = list(generate(generator, counts, {}, seed=0))
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
    found: dict[str, tuple[int, int]] = {}
    for problem, group in zip(splits["test"], graded, strict=True):
        right, count = found.get(str(problem.level), (0, 0))
        verdicts = [response.correct for response in group or ()]
        found[str(problem.level)] = (right + sum(verdicts), count + len(verdicts))
    return dict(sorted(found.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("generators", nargs="*", default=["word_problem", "unit_conversion", "geometry"])
    parser.add_argument("--steps", type=int, default=800)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for generator in options.generators:
        if generator not in GENERATORS:
            parser.error(f"no generator {generator!r}; there are {', '.join(sorted(GENERATORS))}")
        file = FOLDER / f"{generator}-{options.steps}.json"
        if not file.exists():
            write_json(file, measure(generator, options.steps))
        rates = {level: right / count for level, (right, count) in read_json(file).items()}
        cells = []
        for level, (right, count) in read_json(file).items():
            low, high = wilson(right, count)
            cells.append(f"{level}: {rates[level]:.3f} [{low:.3f}, {high:.3f}]")
        order = statistics.correlation([float(level) for level in rates], list(rates.values()), method="ranked")
        print(f"{generator}: {'; '.join(cells)}; Spearman's rho {order:.2f}", flush=True)
        print(json.dumps(rates))


if __name__ == "__main__":
    main()
