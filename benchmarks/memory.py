"""Planned against measured memory of real runs: `python benchmarks/memory.py [CASE …]` (ten minutes).

Each case trains two steps in a process of its own on this machine's CPU, in one thread (several on busy
cores take many times as long); measured is the peak of its resident memory (VmHWM). On a machine with a GPU
the same runs are made there, and measured is torch's peak of allocated memory plus CUDA's context.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from mathrl.core.metrics import JsonlSink
from mathrl.core.nouns import Problem
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.linear import use_bfloat16_products
from mathrl.models.load import keep_freed_memory
from mathrl.models.norm import use_fast_norms
from mathrl.models.packing import Group
from mathrl.models.shape import shape_of
from mathrl.params.load import load_params
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel
from mathrl.params.schema import Params
from mathrl.rewards.compose import Reward, RewardFunction
from mathrl.rewards.verdict import Verdict
from mathrl.rollout.sampler import Sampler
from mathrl.rollout.torch_engine import TorchEngine
from mathrl.trainers.backend import Backend
from mathrl.trainers.memory import GIB, plan_memory
from mathrl.trainers.rl import train_rl
from mathrl.trainers.sft import train_sft

SMALL = FreshModel(hidden_size=512, intermediate_size=1376, layers=8, heads=8, kv_heads=2)
LARGE = FreshModel(hidden_size=768, intermediate_size=2048, layers=12, heads=12, kv_heads=4)
PROMPT, RESPONSE = 16, 48
PART = "rl.tokens_per_microbatch=2048"
ADAMW, RECOMPUTE = "rl.optimizer.type=adamw", "sft.gradient_checkpointing=true"
PPO = ["rl.advantage=gae", "rl.critic={}", "rl.group_size=1", "rl.prompts_per_step=64"]
KL_IN_REWARD = ["rl.kl_coef=0.01", "rl.kl_in=reward", "rl.kl_estimator=k1"]
CASES = {
    "sft, 22M, AdamW": (SMALL, "sft", ["sft.optimizer.type=adamw"]),
    "sft, 22M, Muon, recomputed": (SMALL, "sft", [RECOMPUTE, "sft.tokens_per_step=8192"]),
    "rl GRPO, 22M, KL": (SMALL, "rl", [ADAMW, "rl.kl_coef=0.01"]),
    "rl PPO, 22M": (SMALL, "rl", PPO),
    "rl GRPO, 75M, AdamW": (LARGE, "rl", [ADAMW, "rl.ema=null"]),
    "rl PPO, 75M, KL in the reward": (LARGE, "rl", [*PPO, *KL_IN_REWARD, ADAMW, PART]),
    "rl GRPO, 75M, LoRA, KL": (LARGE, "rl", ["rl.lora={}", "rl.kl_coef=0.01", ADAMW]),
}
SIZES = [
    "rl.steps=2", "rl.prompts_per_step=8", "rl.group_size=8", f"rl.max_tokens={RESPONSE}", "rl.eval_every=0",
    "sft.steps=2", "sft.eval_every=0", "run.processes=1",
]  # fmt: skip


def params_of(case: str) -> Params:
    return load_params(overrides=[*SIZES, *CASES[case][2]])


class Lengths(RewardFunction):
    """Something that differs between responses."""

    def score(self, items):  # type: ignore[no-untyped-def]
        verdict = Verdict(False, None, "none", "", 0.0)
        return [Reward(sum(map(ord, item.response)) % 7 / 7, False, {}, verdict) for item in items]


def run(case: str) -> None:
    """Two steps of a case in this process; prints planned and measured bytes as JSON."""
    base, stage, _ = CASES[case]
    params = params_of(case)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    keep_freed_memory()
    torch.set_num_threads(1)
    tokenizer = character_tokenizer(base)
    model = fresh_network(base, tokenizer, seed=0).to(device).eval()
    use_fast_norms(model)
    use_bfloat16_products(model)
    state, backend = Path(tempfile.mkdtemp()), Backend(device)

    def sink(resume_after: int | None) -> JsonlSink:
        return JsonlSink(state / "metrics.jsonl", resume_after=resume_after)

    if stage == "sft":
        shown = [Group([5] * PROMPT, [[6 + i % 80] * RESPONSE]) for i in range(512)]
        train_sft(model, shown, (), params.sft, 0, backend, state, sink)
    else:
        sampler = Sampler(TorchEngine(model, tokenizer, Rollout()), tokenizer, params.prompt)
        problems = [
            Problem(id=f"p{i}", question=f"{i:0{PROMPT}d}", answers=("1",), source="s", split="rl")
            for i in range(64)
        ]
        train_rl(model, sampler, problems, (), Lengths({}), params.rl, 0, backend, state, sink)
    planned = plan_memory(
        shape_of(model.config), params, stage, device.type, prompt_tokens=PROMPT, response_tokens=RESPONSE
    )
    measured = (
        float(torch.cuda.max_memory_allocated()) + 0.6 * GIB if device.type == "cuda" else peak_resident()
    )
    print(json.dumps({"planned": planned.peak, "measured": measured, "largest": planned.largest_phase}))


def peak_resident() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return float(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status")


def main(cases: list[str]) -> None:
    print(f"{'case':<34} {'planned':>9} {'measured':>9} {'off by':>7}   largest phase")
    for case in cases or CASES:
        done = subprocess.run(
            [sys.executable, __file__, "--run", case], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
        planned, measured = found["planned"] / GIB, found["measured"] / GIB
        off = planned / measured - 1
        print(
            f"{case:<34} {planned:>6.2f} GiB {measured:>5.2f} GiB {off:>+7.1%}   {found['largest']}",
            flush=True,
        )


if __name__ == "__main__":
    run(sys.argv[2]) if sys.argv[1:2] == ["--run"] else main(sys.argv[1:])
