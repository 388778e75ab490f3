"""How much of a benchmark must be in the training data before the probe sees it?

    python benchmarks/contamination_probe.py [--seeds 0 1 2]

A small model learns 4,000 texts of chained arithmetic (3 to 6 operations), question and worked solution, two passes;
0, 50 or 200 of the 200 test problems are among them, eight times each. Then `mathrl evaluate --probe` asks whether
the test problems score higher than twins that the same generator draws. Per dose and seed: the AUC of each score with
the probe's own interval; beside it, from the same log-probs, the usual AUC without pairs (scikit-learn's
roc_auc_score of problems against twins), and how well a problem's lead over its twins tells the planted problems from
the others. A finished model is kept in .mathrl/contamination, so the command can be stopped and started again.
"""

import argparse
import random
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from sklearn.metrics import roc_auc_score

from mathrl.compose import load_params
from mathrl.core.files import read_json, write_json
from mathrl.core.metrics import JsonlSink
from mathrl.core.types import Problem
from mathrl.data.templates import demonstration
from mathrl.data.twins import generators_of, twins
from mathrl.generators import generate
from mathrl.learners.distributed import Ranks
from mathrl.models.base import make_base
from mathrl.models.export import export_model
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.packing import Group
from mathrl.params import Params
from mathrl.reports.probe import completion_group, probe_score, score_groups, solution_group
from mathrl.trainers.sft import train_sft
from mathrl.trainers.training_run import TrainingRun

FOLDER = Path(".mathrl/contamination")
DOSES, TEST, TEXTS, REPEATS, PASSES, TWINS = (0, 50, 200), 200, 4000, 8, 2, 2
SMALL = (
    "model.base.hidden_size=64", "model.base.intermediate_size=176", "model.base.layers=2", "model.base.heads=2",
    "model.base.alphabet=arithmetic", "model.precision=float32", "run.device=cpu", "run.processes=1",
    "curate.sources.0.options.steps=[3, 4, 5, 6]",  # of two operations there are too few for twins
)  # fmt: skip
SCORES = {"completion": completion_group, "solution": solution_group}


def trained(params: Params, dose: int, seed: int, problems: list[Problem], planted: list[Problem]) -> tuple[Any, Any]:
    """The model that has met `planted`, and its tokenizer."""
    base, folder = FOLDER / f"base-{seed}", FOLDER / f"{dose}-{seed}"
    if not base.is_dir():
        make_base(params.model, base, seed)
    if folder.is_dir():
        return load_model(folder, params.model, "cpu"), load_tokenizer(folder, params.model)
    tokenizer, network = load_tokenizer(base, params.model), load_model(base, params.model, "cpu")
    texts = [*problems, *planted * REPEATS]
    groups = [text_group(problem, params, tokenizer) for problem in texts]
    tokens = sum(len(group.responses[0]) for group in groups)
    sft = params.sft.model_copy(update={"steps": PASSES * tokens // params.sft.tokens_per_step, "eval_every": 0})
    state = FOLDER / "states" / f"{dose}-{seed}"
    run = TrainingRun(
        Ranks(torch.device("cpu")), state, seed, lambda resume: JsonlSink(state / "metrics.jsonl", resume_after=resume)
    )
    train_sft(network, groups, groups[:8], sft, run)
    export_model(network, tokenizer, folder, f"# A model that has met {dose} test problems\n")
    return network.eval(), tokenizer


def text_group(problem: Problem, params: Params, tokenizer: Any) -> Group:
    """The whole text is learned, question and solution, but for its first token."""
    first, *rest = tokenizer.encode(problem.question + demonstration(problem, params.prompt, terse=False))
    return Group((first,), ((*rest, tokenizer.eos_token_id),))


def one(params: Params, dose: int, seed: int) -> dict[str, Any]:
    """The scores of one model."""
    source = params.curate.sources[0]
    drawn = list(generate("chain", {"test": TEST, "sft": TEXTS}, source.options.model_dump(), seed=seed, name="chain"))
    test = [problem for problem in drawn if problem.split == "test"]
    texts = [problem for problem in drawn if problem.split == "sft"]
    planted = random.Random(seed).sample(test, dose)
    used = time.process_time()
    network, tokenizer = trained(params, dose, seed, texts, planted)
    known, generators = {problem.question for problem in drawn}, generators_of(params.curate.sources)
    pairs = [(p, twins(p, "generated", TWINS, generators=generators, known=known, seed=seed)) for p in test]
    met = {problem.id for problem in planted}
    result: dict[str, Any] = {}
    for name, maker in SCORES.items():
        groups = [maker(each, params.prompt, tokenizer) for problem, others in pairs for each in (problem, *others)]
        scored = iter(score.logprob for score in score_groups(network, groups))
        rows = [(next(scored), [next(scored) for _ in others]) for _, others in pairs]
        own, others = [row[0] for row in rows], [row[1] for row in rows]
        auc = probe_score(name, own, others, 1 - 0.05 / len(SCORES)).auc
        flat = [value for values in others for value in values]
        leads = [score - fmean(values) for score, values in rows]
        result[name] = {
            "auc": [auc.mean, auc.low, auc.high],
            "unpaired": float(roc_auc_score([1] * len(own) + [0] * len(flat), own + flat)),
            "planted": float(roc_auc_score([p.id in met for p in test], leads)) if 0 < dose < TEST else None,
        }
    return result | {"processor_seconds": time.process_time() - used}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = arguments.parse_args().seeds
    params = load_params(overrides=SMALL)
    print("| score | dose | seed | AUC, paired | AUC, unpaired | planted found |\n|---|---|---|---|---|---|")
    for seed in seeds:
        for dose in DOSES:
            file = FOLDER / f"{dose}-{seed}.json"
            if not file.exists():
                write_json(file, one(params, dose, seed))
            result = read_json(file)
            for name in SCORES:
                row = result[name]
                low, high = row["auc"][1:]
                found = "" if row["planted"] is None else f"{row['planted']:.3f}"
                print(
                    f"| {name} | {dose} of {TEST} | {seed} | {row['auc'][0]:.3f} [{low:.3f}, {high:.3f}] "
                    f"| {row['unpaired']:.3f} | {found} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
