"""Tokens per second of the rollout engines: torch, vLLM and Hugging Face's generate, in one run.

    python benchmarks/rollout.py [--prompts 64] [--samples 8] [--tokens 128] [--threads 1]

All sample 64 prompts of 16 tokens, 8 responses each of exactly 128 tokens (no end token), at temperature 1
with log-probs of the sampled tokens (Hugging Face's generate: without), from the same random weights: Qwen2
architecture, 256 wide, 5 layers, 4 heads and 2 key-value heads, 512 tokens: 3.8 million parameters. Each
engine runs in a separate process, with a short warm-up and then `--runs` timed runs, the fastest of which
counts.
"CPU" is tokens per second of processor time, which other load on the machine disturbs least.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
ENGINES, PRECISIONS = ("torch", "vllm", "hf"), ("float32", "bfloat16")
NAMES = {"torch": "mathrl torch engine", "vllm": "mathrl vLLM engine", "hf": "HF generate"}
# Measured with vLLM 0.32 and transformers 5.19 alone, without seeds, one thread, on another day.
REFERENCE = {("hf", "float32"): 2040, ("hf", "bfloat16"): 3245, ("vllm", "float32"): 8155, ("vllm", "bfloat16"): 10800}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--role", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--precision", choices=PRECISIONS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def compare(options: argparse.Namespace) -> None:
    print(f"load average before: {os.getloadavg()[0]:.2f}; {options.threads} thread(s), {os.cpu_count()} cores\n")
    print(f"{'':<30}{'tokens/s':>10}{'CPU':>10}{'reference':>11}")
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        for precision in PRECISIONS:
            for engine in options.engines:
                wall, cpu = in_own_process(engine, precision, Path(folder), options)
                reference = REFERENCE.get((engine, precision))
                print(
                    f"{NAMES[engine] + ' ' + precision:<30}{wall:>10,.0f}{cpu:>10,.0f}{reference or '':>11}", flush=True
                )
    print(f"\nload average after: {os.getloadavg()[0]:.2f}")


def make_model(folder: Path) -> None:
    """The model folder, without an end token in its configuration, so that no response ends early."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512, hidden_size=256, intermediate_size=688, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, eos_token_id=None,
        bos_token_id=None, pad_token_id=None, initializer_range=0.08,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    print(f"{sum(weight.numel() for weight in model.parameters()) / 1e6:.2f} million parameters")


def in_own_process(engine: str, precision: str, folder: Path, options: argparse.Namespace) -> tuple[float, float]:
    """Tokens per second of wall time and of processor time."""
    threads = {"OMP_NUM_THREADS": str(options.threads), "MKL_NUM_THREADS": str(options.threads)}
    command = [sys.executable, __file__, "--role", engine, "--precision", precision, "--folder", str(folder)]
    for name in ("prompts", "samples", "tokens", "threads", "runs"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    rates = json.loads(done.stdout.splitlines()[-1])
    return rates["wall"], rates["cpu"]


def measure(options: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 512, (options.prompts, 16), generator=generator).tolist()
    generate = {"torch": torch_engine, "vllm": vllm_engine, "hf": hf_generate}[options.role](options)
    generate(prompts, min(8, options.tokens))
    best = {"wall": 0.0, "cpu": 0.0}
    for _ in range(options.runs):
        start, cpu = time.perf_counter(), time.process_time()
        tokens = generate(prompts, options.tokens)
        assert tokens == options.prompts * options.samples * options.tokens, "a response ended early"
        best["wall"] = max(best["wall"], tokens / (time.perf_counter() - start))
        best["cpu"] = max(best["cpu"], tokens / (time.process_time() - cpu))
    print(json.dumps(best))


Generate = Callable[[list[list[int]], int], int]


class NoTokenizer:
    """Stands in for a tokenizer: no token ends a response, and nobody reads it."""

    eos_token_id = None

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return ""

    def batch_decode(self, rows: list[list[int]], skip_special_tokens: bool) -> list[str]:
        return [""] * len(rows)


def counted(engine: Any, samples: int) -> Generate:
    from mathrl.rollout.engine import Sampling

    def generate(prompts: list[list[int]], tokens: int) -> int:
        groups = engine.generate(prompts, Sampling(samples, 1.0, tokens), seed=0)
        return sum(len(completion.tokens) for group in groups for completion in group)

    return generate


def torch_engine(options: argparse.Namespace) -> Generate:
    from mathrl.models.load import load_model
    from mathrl.params.rollout import Rollout
    from mathrl.params.run import Model
    from mathrl.rollout.torch_engine import TorchEngine

    model = load_model(options.folder, Model(precision=options.precision), "cpu")
    engine = TorchEngine(model, NoTokenizer(), Rollout(max_sequences=options.prompts * options.samples))
    engine.ends = [-1]  # no token
    return counted(engine, options.samples)


def vllm_engine(options: argparse.Namespace) -> Generate:
    from mathrl.params.rollout import Rollout
    from mathrl.params.run import Model
    from mathrl.rollout.vllm_engine import open_vllm

    rollout = Rollout(engine="vllm", max_sequences=options.prompts * options.samples)
    engine = open_vllm(options.folder, NoTokenizer(), Model(precision=options.precision), rollout)
    return counted(engine, options.samples)


def hf_generate(options: argparse.Namespace) -> Generate:
    import torch
    from transformers import AutoModelForCausalLM

    kind = getattr(torch, options.precision)
    model = AutoModelForCausalLM.from_pretrained(options.folder, dtype=kind).eval()

    def generate(prompts: list[list[int]], tokens: int) -> int:
        ids = torch.tensor(prompts).repeat_interleave(options.samples, 0)
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                max_new_tokens=tokens,
                pad_token_id=0,
            )
        return int((out.shape[1] - ids.shape[1]) * out.shape[0])

    return generate


if __name__ == "__main__":
    options = arguments()
    measure(options) if options.role else compare(options)
