"""A GRPO step of a 0.5-billion-parameter model with random weights, on a GPU: arithmetic, speed and memory.

    python benchmarks/gpu_step.py                     # one GPU: 128 prompts x 8 responses x 512 tokens
    python benchmarks/gpu_step.py --toy               # the same program at a size for a CPU (a minute)
    python benchmarks/gpu_step.py --engines vllm --micro 32768 --checkpointing --profile trace.json

The architecture and the sizes are Qwen2.5-0.5B's; the weights are random, so every response ends at its limit.
Each engine runs `--steps` steps of `train_rl` in a separate process; the first is a warm-up and does not count.
The update uses all responses, AdamW and no KL; rewards are random, so that every group has a gradient.

MFU is 6 P + 6 L l H d operations per trained token (P parameters; in attention a token sees l / 2 others on
average, with L layers, H heads of width d, l tokens in a sequence), divided by the update's time and by the rate
of a large bfloat16 product measured at the start; recomputed activations do not count. Beside it is the same figure
relative to the manufacturer's rate. "planned" is `mathrl plan`'s peak for the same parameters.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
PROMPT = 128
TOY = {"prompts": 4, "samples": 4, "tokens": 32, "micro": 1024}
# Dense bfloat16 operations per second, from the manufacturers' data sheets.
NOMINAL = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "RTX 4090": 165e12}
COLUMNS = ("s/step", "rollout", "tokens/s", "sync", "update", "tokens/s", "MFU", "of maker's", "planned", "measured")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--micro", type=int, default=16384, help="rl.tokens_per_microbatch")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--engines", nargs="+", choices=["torch", "vllm"], default=["torch", "vllm"])
    parser.add_argument("--checkpointing", action="store_true", help="rl.gradient_checkpointing")
    parser.add_argument("--share", type=float, default=0.4, help="rollout.vllm.memory_share")
    parser.add_argument("--set", action="append", default=[], help="any other parameter")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--profile", type=Path, help="a trace of the last step, for chrome://tracing")
    parser.add_argument("--role", choices=["torch", "vllm"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.toy:
        vars(options).update(TOY)
    return options


def main() -> None:
    options = arguments()
    if options.role:
        run(options)
        return
    import torch

    on_gpu = torch.cuda.is_available()
    if not on_gpu and not options.toy:
        sys.exit("error: torch finds no GPU; --toy runs a small model on the CPU")
    name = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(f"{name}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}, load {os.getloadavg()[0]:.1f}")
    print(f"{options.prompts} prompts x {options.samples} responses x {options.tokens} tokens\n")
    print(f"{'':<8}" + "".join(f"{column:>12}" for column in COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), options.toy)
        for engine in options.engines:
            command = [sys.executable, __file__, "--role", engine, "--folder", folder, *sys.argv[1:]]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                sys.exit(done.returncode)
            show(engine, json.loads(done.stdout.splitlines()[-1]), name)


def show(engine: str, figures: dict[str, float], device: str) -> None:
    nominal = next((rate for kind, rate in NOMINAL.items() if kind in device), None)
    of_maker = f"{figures['flops'] / nominal:.1%}" if nominal else "unknown"
    row = (
        f"{figures['step']:.2f}",
        f"{figures['rollout']:.2f}",
        f"{figures['sampled']:,.0f}",
        f"{figures['sync']:.2f}",
        f"{figures['update']:.2f}",
        f"{figures['trained']:,.0f}",
        f"{figures['flops'] / figures['peak_flops']:.1%}",
        of_maker,
        f"{figures['planned']:.2f} GiB",
        f"{figures['measured']:.2f} GiB",
    )
    print(f"{engine:<8}" + "".join(f"{value:>12}" for value in row), flush=True)
    print(
        f"{'':<8}canary {figures['canary']:.2g}, alignment {figures['alignment']:.5f}, largest planned phase: "
        f"{figures['phase']}",
        flush=True,
    )


def make_model(folder: Path, toy: bool) -> None:
    """Random weights and a character tokenizer; most tokens of the vocabulary have no text."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from mathrl.models.base import character_tokenizer
    from mathrl.params.run import FreshModel
    from mathrl.planning.model_shape import KNOWN, SIZES

    kind, sizes = KNOWN["Qwen/Qwen2.5-0.5B-Instruct"]
    chosen = dict(zip(SIZES, sizes, strict=True))
    if toy:
        chosen |= {
            "hidden_size": 128,
            "intermediate_size": 352,
            "num_hidden_layers": 2,
            "vocab_size": 8192,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        }
    tokenizer = character_tokenizer(FreshModel())
    config = AutoConfig.for_model(
        kind, **chosen, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def run(options: argparse.Namespace) -> None:
    import torch

    from mathrl.core.metrics import JsonlSink
    from mathrl.core.types import Problem
    from mathrl.grading.verdict import Verdict
    from mathrl.learners.distributed import Ranks
    from mathrl.models.device import choose_device
    from mathrl.models.load import load_model, load_tokenizer
    from mathrl.params.load import load_params
    from mathrl.planning.memory import GIB, RUNTIME, plan_memory
    from mathrl.planning.model_shape import shape_of
    from mathrl.rewards.compose import RewardFunction, RewardResult
    from mathrl.rollout.open_engine import training_engine
    from mathrl.rollout.sampler import Sampler
    from mathrl.trainers.rl import train_rl
    from mathrl.trainers.training_run import TrainingRun

    class Chance(RewardFunction):
        draw = random.Random(0)

        def score(self, items: Any) -> list[RewardResult]:
            verdict = Verdict(False, None, "none", "", 0.0)
            return [RewardResult(self.draw.random(), False, {}, verdict) for _ in items]

    device = choose_device("auto")
    if device.type == "cpu":
        torch.set_num_threads(1)
    peak_flops = matmul_rate(device)
    params = load_params(overrides=[
        f"model.base={{type: pretrained, path: {options.folder}}}", "model.precision=bfloat16",
        "run.processes=1", f"prompt.max_tokens={PROMPT}", f"rl.steps={options.steps}",
        f"rl.prompts_per_step={options.prompts}", f"rl.group_size={options.samples}",
        f"rl.max_tokens={options.tokens}", f"rl.tokens_per_microbatch={options.micro}",
        f"rl.gradient_checkpointing={str(options.checkpointing).lower()}", "rl.skip_zero_variance=false",
        "rl.optimizer.type=adamw", "rl.lr=1e-6", "rl.ema=null", "rl.kl_coef=0", "rl.eval_every=0",
        "rl.checkpoint_every=1000000", f"rollout.engine={options.role}",
        f"rollout.max_sequences={options.prompts * options.samples}", f"rollout.vllm.memory_share={options.share}",
        f"rollout.vllm.max_model_length={PROMPT + options.tokens}", *options.set,
    ])  # fmt: skip
    tokenizer = load_tokenizer(options.folder)
    model = load_model(options.folder, params.model, device)
    shape = shape_of(model.config)
    engine = training_engine(model, options.folder, tokenizer, params.model, params.rollout, False)
    sampler = Sampler(engine, tokenizer, params.prompt)
    asked = [str(number % 10) * PROMPT for number in range(options.prompts * options.steps)]
    problems = [
        Problem(id=f"p{number}", question=text, answers=("1",), source="random", split="rl")
        for number, text in enumerate(asked)
    ]
    rows: list[dict[str, Any]] = []
    profiler = torch.profiler.profile() if options.profile else None

    class Sink(JsonlSink):
        def log(self, step: int, metrics: Any) -> None:
            rows.append(dict(metrics))
            if profiler is not None and step == options.steps - 1:
                profiler.start()

    with tempfile.TemporaryDirectory() as state:
        ranks = Ranks(device, params.training)
        training = TrainingRun(ranks, Path(state), 0, lambda resume_after: Sink(Path(state) / "metrics.jsonl"))
        train_rl(model, sampler, problems, (), Chance({}), params.rl, training)
    if profiler is not None:
        profiler.stop()
        profiler.export_chrome_trace(str(options.profile))
        print(
            profiler.key_averages().table(
                sort_by="self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total", row_limit=25
            ),
            file=sys.stderr,
        )
    counted = rows[1:]
    mean = {key: sum(row.get(key, 0.0) for row in counted) / len(counted) for key in counted[0]}
    length = PROMPT + mean["response_length"]
    attention = 6 * shape.layers * length * shape.heads * shape.head_width
    flops = mean["trained_tokens"] * (6 * shape.parameters + attention) / mean["time/update"]
    total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    planned = plan_memory(shape, params, "rl", device.type, gpu_memory=float(total))
    print(json.dumps({
        "step": mean["time/step"], "rollout": mean["time/rollout"], "sync": mean.get("time/sync", 0.0),
        "sampled": options.prompts * options.samples * mean["response_length"] / mean["time/rollout"],
        "update": mean["time/update"], "trained": mean["trained_tokens"] / mean["time/update"],
        "flops": flops, "peak_flops": peak_flops, "planned": planned.peak / GIB,
        "phase": planned.largest_phase, "measured": measured(device, RUNTIME["cuda"]) / GIB,
        "canary": mean.get("rollout/canary_gap", 0.0), "alignment": mean["rollout/logprob_alignment"],
    }))  # fmt: skip


def matmul_rate(device: Any) -> float:
    """Operations per second of a large bfloat16 product, the best of several."""
    import torch

    size, best = (8192 if device.type == "cuda" else 1024), 0.0
    a = torch.randn(size, size, device=device).to(torch.bfloat16)
    for _ in range(10):
        start = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def measured(device: Any, context: float) -> float:
    """Peak in bytes: what is not free on the GPU at the end, or the process's own."""
    import torch

    if device.type == "cuda":
        # Not all of vLLM's memory comes from torch's allocator, and torch's peak is above its current use.
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        return max(total - free - reserved, context) + torch.cuda.max_memory_allocated(device)
    from memory import peak_resident

    return peak_resident()


if __name__ == "__main__":
    main()
