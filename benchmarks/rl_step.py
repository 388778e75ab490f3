"""One GRPO step of mathrl beside TRL: same checkpoint, prompts, group, lengths, reward, precision.

    python benchmarks/rl_step.py --model models/sft --problems data/mixture/train.jsonl \
        --dev data/curated/dev.jsonl

Prints seconds and CPU-seconds a step split into generation, log-probs and update, the share of this machine's
measured matrix-product peak, and the accuracy on dev problems after equal numbers of samples. Each side runs
in processes of its own, one after the other. Quote a quiet machine.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SIZE, REPEATS = 1024, 20


def main() -> None:
    options = _options()
    if options.side == "mathrl":
        _mathrl_side(options)
        return
    print(
        f"{options.steps} steps of {options.prompts} prompts x {options.group} responses, at most "
        f"{options.max_tokens} tokens, AdamW {options.lr:g}, temperature 1, no KL, one update a step"
    )
    for precision in options.precision:
        peak = _peak(precision)
        print(f"\n{precision}: matrix-product peak of this machine {peak / 1e9:.0f} GFLOP/s (two threads)")
        rows = {}
        for name in options.sides:
            with tempfile.TemporaryDirectory() as folder:
                rows[name] = _run_side(name, options, precision, Path(folder))
        _print(rows, peak)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    for name in ("model", "problems", "dev"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--precision", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--sides", nargs="+", default=["mathrl", "mathrl, every group", "TRL"])
    parser.add_argument(
        "--every-group", action="store_true", help="Train on groups without a difference too."
    )
    for name, default in (
        ("steps", 20),
        ("prompts", 32),
        ("group", 16),
        ("max-tokens", 64),
        ("processes", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=3e-4)
    return parser.parse_args()


def _run_side(name: str, options: argparse.Namespace, precision: str, folder: Path) -> dict[str, Any]:
    shared = []
    for key in ("model", "problems", "steps", "prompts", "group", "max-tokens", "lr"):
        shared += [f"--{key}", str(getattr(options, key.replace("-", "_")))]
    shared += ["--precision", precision, "--output", str(folder)]
    if name == "TRL":
        command = [sys.executable, str(HERE / "trl_grpo.py"), *shared]
    else:
        command = [sys.executable, str(HERE / "rl_step.py"), "--side", "mathrl", "--dev", str(options.dev),
                   "--processes", str(options.processes), *shared]  # fmt: skip
        command += ["--every-group"] if name.endswith("every group") else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    report["accuracy"] = _accuracy(folder / "model", options.dev)
    return report


def _mathrl_side(options: argparse.Namespace) -> None:
    """Runs in every rank."""
    from mathrl.core.launch import gather, launch_ranks, rank

    launch_ranks(options.processes)
    from mathrl.core.files import read_jsonl
    from mathrl.core.metrics import JsonlSink
    from mathrl.core.problems import read_problems
    from mathrl.models.load import export_model, load_model, load_tokenizer
    from mathrl.params.run import Model, Prompt, Reward, Rollout
    from mathrl.params.train import Optimizer, Rl
    from mathrl.rewards.compose import build_reward
    from mathrl.rollout.sampler import Sampler
    from mathrl.rollout.torch_engine import TorchEngine
    from mathrl.trainers.backend import Backend, choose_device
    from mathrl.trainers.rl import train_rl

    backend = Backend(choose_device("auto"))
    model = load_model(options.model, Model(precision=options.precision[0]), backend.device)
    tokenizer = load_tokenizer(options.model)
    sampler = Sampler(TorchEngine(model, tokenizer, Rollout()), tokenizer, Prompt())
    optimizer = Optimizer(type="adamw", warmup_steps=0, schedule="constant", clip_norm=1.0)
    params = Rl(
        steps=options.steps, prompts_per_step=options.prompts, group_size=options.group, lr=options.lr,
        optimizer=optimizer, max_tokens=options.max_tokens, eval_every=0, checkpoint_every=options.steps,
        ema=None, skip_zero_variance=not options.every_group,
    )  # fmt: skip
    metrics = options.output / "metrics.jsonl"
    cpu = time.process_time()
    train_rl(
        model, sampler, read_problems(options.problems), [], build_reward(Reward()), params, 0, backend,
        options.output / f"state{rank()}", lambda after: JsonlSink(metrics, resume_after=after),
    )  # fmt: skip
    cpus = gather(time.process_time() - cpu, "cpu")
    if rank() != 0 or cpus is None:
        return
    rows = list(read_jsonl(metrics))[1:]  # the first step warms caches up
    cpu_a_step = sum(cpus) / options.steps
    mean = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0] if name.startswith("time/")}
    total = mean["time/step"]
    report = {
        "seconds_a_step": total,
        "cpu_seconds_a_step": cpu_a_step,
        # CPU time of a phase: its share of the wall time, all processes being busy in each.
        "phases": {
            "generation": cpu_a_step * mean["time/rollout"] / total,
            "log-probs and update": cpu_a_step * mean["time/update"] / total,
            "reward and rest": cpu_a_step * (total - mean["time/rollout"] - mean["time/update"]) / total,
        },
        "trained_tokens": sum(row["trained_tokens"] for row in rows) / len(rows),
        "sampled_tokens": sum(row["throughput/tokens_per_second"] * row["time/step"] for row in rows)
        / len(rows),
        "parameters": sum(p.numel() for n, p in model.named_parameters() if "embed" not in n),
    }
    export_model(model, tokenizer, options.output / "model", "")
    (options.output / "report.json").write_text(json.dumps(report))


def _accuracy(folder: Path, dev: Path) -> float:
    """pass@1 at temperature 0.7 over 8 samples of each dev problem, by one sampler for both sides."""
    from mathrl.core.problems import read_problems
    from mathrl.params.run import Model, Prompt, Reward, Rollout
    from mathrl.rewards.compose import build_reward
    from mathrl.rollout.engine import Sampling
    from mathrl.rollout.open import open_engine
    from mathrl.rollout.sampler import Sampler

    engine, tokenizer = open_engine(folder, Model(precision="float32"), Rollout(), "cpu")
    graded = Sampler(engine, tokenizer, Prompt()).sample(
        read_problems(dev), Sampling(8, 0.7, 64), build_reward(Reward()), seed=0
    )
    flat = [each.correct for group in graded if group for each in group]
    return sum(flat) / len(flat)


def _peak(precision: str) -> float:
    """FLOP/s of square matrix products, the best of many."""
    import torch

    kind = getattr(torch, precision)
    one, other = torch.randn(SIZE, SIZE).to(kind), torch.randn(SIZE, SIZE).to(kind)
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        one @ other
        best = min(best, time.perf_counter() - start)
    return 2.0 * SIZE**3 / best


def _print(rows: dict[str, dict[str, Any]], peak: float) -> None:
    theirs = rows.get("TRL")
    for name, row in rows.items():
        line = f"{name:<20} {row['seconds_a_step']:.3f} s a step, {row['cpu_seconds_a_step']:.3f} CPU-s ("
        line += ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in row["phases"].items()) + ")"
        if "trained_tokens" in row:
            useful = row["parameters"] * (6 * row["trained_tokens"] + 2 * row["sampled_tokens"])
            line += f"; {useful / row['seconds_a_step'] / peak:.0%} of the peak"
        if theirs and row is not theirs:
            line += f"; {theirs['seconds_a_step'] / row['seconds_a_step']:.2f} times TRL"
        print(f"{line}; dev accuracy afterwards {row['accuracy']:.3f}", flush=True)


if __name__ == "__main__":
    main()
