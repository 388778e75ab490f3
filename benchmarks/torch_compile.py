"""Seconds of an update's forward and backward pass, not compiled and with torch.compile, whole or layer by layer.

    python benchmarks/torch_compile.py [--ways plain layer whole] [--precision float32] [--size demo]

The demo's model or one of 22M parameters, packed batches of 8 prompts with 16 responses (4 prompts at 22M) of
20 to 59 tokens, one thread; the first pass over the eight batches, in which everything is compiled, is reported
separately from the third.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.device import keep_freed_memory
from mathrl.models.linear import use_half_products
from mathrl.models.logprobs import response_logprobs
from mathrl.models.norm import use_fast_norms
from mathrl.models.packing import Group
from mathrl.params.run import FreshModel

SIZES = {
    "demo": (FreshModel(), 8),
    "22M": (FreshModel(hidden_size=512, intermediate_size=1376, layers=8, heads=8, kv_heads=2), 4),
}


def batches(prompts: int) -> list[list[Group]]:
    draw = torch.Generator().manual_seed(0)

    def group(number: int) -> Group:
        lengths = torch.randint(20, 60, (16,), generator=draw).tolist()
        responses = [torch.randint(3, 90, (length,), generator=draw).tolist() for length in lengths]
        return Group([5 + number % 50] * 12, responses)

    return [[group(number) for number in range(prompts)] for _ in range(8)]


def measure(way: str, precision: str, size: str) -> None:
    base, prompts = SIZES[size]
    model = fresh_network(base, character_tokenizer(base), seed=0)
    use_fast_norms(model)
    if precision == "bfloat16":
        use_half_products(model)
    every = batches(prompts)
    response_logprobs(model, every[0][:1])  # it tests for packed batches here, before timing
    parts = {"plain": [], "layer": list(model.model.layers), "whole": [model.model]}[way]
    for part in parts:
        part.forward = torch.compile(part.forward, dynamic=True)
    model.train()
    seconds = []
    for batch in every * 3:
        began = time.perf_counter()
        response_logprobs(model, batch)[0].mean().backward()
        model.zero_grad()
        seconds.append(time.perf_counter() - began)
    tokens = sum(group.packed_tokens for group in every[0])
    print(
        f"{size} {precision} {way}: {statistics.mean(seconds[16:]):.3f} s a batch of {tokens:,} tokens, "
        f"first pass {sum(seconds[:8]):.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", nargs="+", choices=["plain", "layer", "whole"], default=["plain", "layer", "whole"])
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--size", choices=list(SIZES), default="demo")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    torch._dynamo.config.cache_size_limit = 64
    for way in options.ways:
        measure(way, options.precision, options.size)
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
