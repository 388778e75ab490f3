"""Seconds and CPU-seconds of an RL step: mathrl and TRL's GRPOTrainer, one after the other in one run.

    python benchmarks/rl_step.py [--model models/sft] [--steps 20] [--precisions float32 bfloat16]

Both start from the same checkpoint and use the same prompts in the same order, 32 prompts x 16 responses of at
most 64 tokens, the same reward, AdamW 3e-4 without warm-up or decay, one update per step, no KL and no weight
averaging; TRL without gradient checkpointing. mathrl runs two processes of one thread, TRL one process of two
threads (each its faster way on two cores). The first two steps warm up and are not counted. bfloat16 is
autocast (`bf16=True`) for TRL and bfloat16 products for mathrl; float32 weights in both. "mathrl-all" also
computes the groups whose responses all have the same reward, as TRL does, although they change nothing.
Neither computes old log-probs: with one update per step they are those of the sampler, or of the update itself.

"of peak" is the least arithmetic that the step's own tokens need (2 operations per parameter and sampled
token, 6 per trained token, the prompt once per group) over time times the matrix-product rate measured at the start
on the same cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
PROMPTS, SAMPLES, MAX_TOKENS, LR, WARM_UP = 32, 16, 64, 3e-4, 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="models/sft")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--role", choices=["all", "trl", "mathrl", "mathrl-all"], default="all")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.role.startswith("mathrl"):
        run_mathrl(options)
    elif options.role == "trl":
        from trl_grpo import run_trl

        run_trl(options, training_problems(options.steps), PROMPTS, SAMPLES, MAX_TOKENS, LR)
    elif not (ROOT / options.model / "config.json").is_file():
        raise SystemExit(
            f"error: {options.model} is not a model folder. `make demo` trains models/sft, from which this benchmark "
            "starts; or name a model folder of your own with --model"
        )
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    peaks = {name: matmul_peak(name) for name in options.precisions}
    print("matrix products on this machine: " + ", ".join(f"{n} {p / 1e9:.0f} GF/s" for n, p in peaks.items()))
    print(f"load average before: {os.getloadavg()[0]:.2f}\n")
    head = ("", "s/step", "CPU s/step", "generation", "log-probs", "update", "of peak", "greedy", "length")
    print("{:<18}{:>8}{:>12}{:>12}{:>11}{:>9}{:>9}{:>9}{:>8}".format(*head))
    means: dict[tuple[str, str], float] = {}
    for precision in options.precisions:
        for role in ("trl", "mathrl", "mathrl-all"):
            result = run_role(role, precision, options)
            steps = result["steps"][WARM_UP:]
            mean = {key: sum(step[key] for step in steps) / len(steps) for key in steps[0]}
            flops = result["parameters"] * (2 * mean["sampled"] + 6 * mean["trained"])
            means[role, precision] = mean["seconds"]
            cpu, share = result["cpu_seconds"] / len(steps), flops / mean["seconds"] / peaks[precision]
            print(
                f"{role + ' ' + precision:<18}{mean['seconds']:>8.3f}{cpu:>12.3f}{mean['generation']:>12.3f}"
                f"{mean['logprobs']:>11.3f}{mean['update']:>9.3f}{share:>9.1%}{result['greedy']:>9.3f}"
                f"{mean['length']:>8.1f}"
            )
        faster = (means["trl", precision] / means[role, precision] for role in ("mathrl", "mathrl-all"))
        print("times TRL: {:.2f} (mathrl), {:.2f} (mathrl-all)\n".format(*faster))
    print(f"greedy: accuracy on 200 held-out problems after {options.steps * PROMPTS * SAMPLES:,} samples")


def run_role(role: str, precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """In a separate process, so that neither sees the other's imports, threads or memory."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        environment.pop("OMP_NUM_THREADS", None)
        ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.processes)]
        launcher = ranks if role.startswith("mathrl") else []
        done = subprocess.run(
            [sys.executable, *launcher, __file__, "--role", role, "--precision", precision, "--model", options.model,
             "--steps", str(options.steps), "--processes", str(options.processes), "--out", str(out)],
            env=environment, cwd=ROOT, check=False, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{role} {precision} failed:\n{done.stderr[-3000:]}")
        result: dict[str, Any] = json.loads(out.read_text())
        return result


def matmul_peak(precision: str) -> float:
    """Operations per second of a large matrix product on all cores, the best of several."""
    import torch

    kind, best, size = getattr(torch, precision), 0.0, 2048
    a, b = torch.randn(size, size).to(kind), torch.randn(size, size).to(kind)
    for _ in range(8):
        start = time.perf_counter()
        a @ b
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def training_problems(steps: int) -> list[Any]:
    """Fresh problems in the order in which mathrl's trainer takes them."""
    from mathrl.compose import load_params
    from mathrl.core.hashing import derive_seed
    from mathrl.generators import generate
    from mathrl.trainers.supervised import Stream

    options = load_params().curate.sources[0].model_dump()["options"]
    problems = list(generate("chain", {"rl": steps * PROMPTS}, options, seed=90210))
    stream = Stream(len(problems), derive_seed(0, "rl order"))
    return [problems[stream.take()] for _ in problems]


def greedy_accuracy(model: Any, tokenizer: Any) -> float:
    from mathrl.compose import load_params
    from mathrl.generators import generate
    from mathrl.rewards.compose import build_reward
    from mathrl.rollout.engine import Sampling
    from mathrl.rollout.sampler import Sampler
    from mathrl.rollout.torch_engine import TorchEngine

    params = load_params()
    options = params.curate.sources[0].model_dump()["options"]
    problems = list(generate("chain", {"test": 200}, options, seed=4711))
    sampler = Sampler(TorchEngine(model, tokenizer, params.rollout), tokenizer, params.prompt)
    graded = sampler.sample(problems, Sampling(1, 0.0, MAX_TOKENS), build_reward(params.reward), 0)
    return sum(group[0].correct for group in graded if group) / len(problems)


def run_mathrl(options: argparse.Namespace) -> None:
    import resource

    import torch

    from mathrl.compose import load_params
    from mathrl.core.metrics import JsonlSink
    from mathrl.learners.distributed import Ranks
    from mathrl.models.device import choose_device
    from mathrl.models.load import load_model, load_tokenizer
    from mathrl.rewards.compose import build_reward
    from mathrl.rollout.sampler import Sampler
    from mathrl.rollout.torch_engine import TorchEngine
    from mathrl.trainers.rl import train_rl
    from mathrl.trainers.training_run import TrainingRun

    optimizer = "{type: adamw, beta1: 0.9, beta2: 0.999, clip_norm: 1.0, warmup_steps: 0, schedule: constant}"
    params = load_params(
        overrides=[
            f"model.precision={options.precision}",
            f"rl.steps={options.steps}",
            f"rl.prompts_per_step={PROMPTS}",
            f"rl.group_size={SAMPLES}",
            f"rl.max_tokens={MAX_TOKENS}",
            f"rl.optimizer.lr={LR}",
            "rl.advantage.eps=1e-4",
            f"rl.loss.skip_zero_variance={str(options.role == 'mathrl').lower()}",
            f"rl.optimizer={optimizer}",
            "rl.ema=null",
            "rl.dev.every=0",
            "rl.checkpoint_every=1000000",
        ]
    )
    torch.set_num_threads(1)  # also with one process: --processes 1 compares on one core
    ranks = Ranks(choose_device("cpu"))
    tokenizer, model = load_tokenizer(options.model), load_model(options.model, params.model, ranks.device)
    problems = training_problems(options.steps)
    # The trainer shuffles the problems: permute them so that it takes them in this order.
    places: list[Any] = sorted(problems, key=lambda problem: problem.id)
    sampler = Sampler(TorchEngine(model, tokenizer, params.rollout), tokenizer, params.prompt)
    rows: list[dict[str, float]] = []
    used: list[float] = []

    class Sink(JsonlSink):
        def log(self, step: int, metrics: Any) -> None:
            rows.append(dict(metrics))

    def cpu() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    sample = sampler.sample

    def sample_noting(*args: Any, **named: Any) -> Any:
        used.append(cpu())
        return sample(*args, **named)

    sampler.sample = sample_noting  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as state:
        run = TrainingRun(ranks, Path(state), 0, lambda resume_after: Sink(Path(state) / "metrics.jsonl"))
        train_rl(model, sampler, places, [], build_reward(params.reward), params.rl, run)
    cpu_seconds = sum(ranks.gather(cpu() - used[WARM_UP]))
    if ranks.rank == 0:
        responses = PROMPTS * SAMPLES
        steps = [
            {
                "seconds": row["time/step"],
                "generation": row["time/rollout"],
                "logprobs": 0.0,
                "update": row["time/update"],
                "sampled": row["response_length"] * responses,
                "trained": row["trained_tokens"],
                "length": row["response_length"],
            }
            for row in rows
        ]
        greedy = greedy_accuracy(model.eval(), tokenizer)
        count = sum(weight.numel() for weight in model.parameters())
        result = {"steps": steps, "cpu_seconds": cpu_seconds, "greedy": greedy, "parameters": count}
        options.out.write_text(json.dumps(result))
    ranks.close()


if __name__ == "__main__":
    main()
