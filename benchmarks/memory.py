"""Planned against measured memory of real runs: `python benchmarks/memory.py [CASE …]` (ten minutes).

Each case trains two steps in a separate process on this machine's CPU, or in two processes for ZeRO, with one
thread (several threads on busy cores take many times as long). Measured is the peak of resident memory (VmHWM), of
several processes the largest. On a machine with a GPU the runs use the GPU, and measured is torch's peak of allocated
memory plus CUDA's context.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from mathrl.compose import load_params
from mathrl.core.metrics import JsonlSink
from mathrl.core.types import Problem
from mathrl.grading import Verdict
from mathrl.learners.distributed import Ranks
from mathrl.models.base import character_tokenizer, fresh_network
from mathrl.models.export import export_model
from mathrl.models.load import keep_freed_memory, load_model
from mathrl.models.model_shape import shape_of
from mathrl.models.packing import Group
from mathrl.models.transformers_import import AutoConfig
from mathrl.params.run import FreshModel
from mathrl.params.schema import Params
from mathrl.planning.memory import plan_memory
from mathrl.planning.memory_states import GIB
from mathrl.rewards.compose import RewardFunction, RewardResult
from mathrl.rollout.open_engine import training_engine
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.rl import train_rl
from mathrl.trainers.sft import train_sft
from mathrl.trainers.training_run import TrainingRun

SMALL = FreshModel(hidden_size=512, intermediate_size=1376, layers=8, heads=8, kv_heads=2)
LARGE = FreshModel(hidden_size=768, intermediate_size=2048, layers=12, heads=12, kv_heads=4)
PROMPT, RESPONSE = 16, 48
PART = "rl.tokens_per_microbatch=2048"
ADAMW, RECOMPUTE = "rl.optimizer.type=adamw", "sft.gradient_checkpointing=true"
PPO = ["rl.advantage=gae", "rl.group_size=1", "rl.prompts_per_step=64"]
KL_IN_REWARD = ["rl.kl={type: reward, coef: 0.01}"]
ZERO = [
    "training.backend=deepspeed",
    "rl.ema=null",
    "run.processes=2",
    ADAMW,
    "rl.tokens_per_microbatch=512",
    "rl.prompts_per_step=4",
    "rl.group_size=4",
]
FLOAT32, STAGE3 = "model.precision=float32", "training.deepspeed.stage=3"
VLLM = ["rollout.engine=vllm", "rollout.vllm.max_model_length=128", "rollout.max_sequences=64", ADAMW]
CASES = {
    "sft, 22M, AdamW": (SMALL, "sft", ["sft.optimizer.type=adamw"]),
    "sft, 22M, Muon, recomputed": (SMALL, "sft", [RECOMPUTE, "sft.tokens_per_step=8192"]),
    "rl GRPO, 22M, KL": (SMALL, "rl", [ADAMW, "rl.kl.coef=0.01"]),
    "rl PPO, 22M": (SMALL, "rl", PPO),
    "rl GRPO, 75M, AdamW": (LARGE, "rl", [ADAMW, "rl.ema=null"]),
    "rl PPO, 75M, KL in the reward": (LARGE, "rl", [*PPO, *KL_IN_REWARD, ADAMW, PART]),
    "rl GRPO, 75M, LoRA, KL": (LARGE, "rl", ["rl.lora={}", "rl.kl.coef=0.01", ADAMW]),
    "rl GRPO, 22M, ZeRO 2, float32": (SMALL, "rl", [*ZERO, FLOAT32]),
    "rl GRPO, 22M, ZeRO 3, float32": (SMALL, "rl", [*ZERO, FLOAT32, STAGE3]),
    "rl GRPO, 22M, ZeRO 2, bfloat16": (SMALL, "rl", ZERO),
    "rl GRPO, 22M, ZeRO 3, bfloat16": (SMALL, "rl", [*ZERO, STAGE3]),
    "rl GRPO, 22M, vLLM": (SMALL, "rl", [*VLLM, FLOAT32]),
    "rl GRPO, 22M, vLLM, bfloat16": (SMALL, "rl", VLLM),
}
SIZES = [
    "rl.steps=2",
    "rl.prompts_per_step=8",
    "rl.group_size=8",
    f"rl.max_tokens={RESPONSE}",
    "rl.dev.every=0",
    "sft.steps=2",
    "sft.eval_every=0",
    "run.processes=1",
]


def params_of(case: str) -> Params:
    return load_params(overrides=[*SIZES, *CASES[case][2]])


class Lengths(RewardFunction):
    """A reward that differs between responses."""

    def score(self, items):  # type: ignore[no-untyped-def]
        verdict = Verdict(False, None, "none", "", 0.0)
        return [RewardResult(sum(map(ord, item.response)) % 7 / 7, False, {}, verdict) for item in items]


def run(case: str) -> None:
    """Two steps of a case in this process; prints planned and measured bytes as JSON."""
    base, stage, _ = CASES[case]
    params = params_of(case)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    keep_freed_memory()
    torch.set_num_threads(1)
    state, ranks = Path(tempfile.mkdtemp()), Ranks(device, params.training)
    tokenizer, folder = character_tokenizer(base), state / "base"
    export_model(fresh_network(base, tokenizer, seed=0), tokenizer, folder, "")
    gc.collect()
    model = load_model(folder, params.model, device, plain=ranks.divides)

    def sink(resume_after: int | None) -> JsonlSink:
        return JsonlSink(state / "metrics.jsonl", resume_after=resume_after)

    training = TrainingRun(ranks, state, 0, sink)
    if stage == "sft":
        shown = [Group([5] * PROMPT, [[6 + i % 80] * RESPONSE]) for i in range(512)]
        train_sft(model, shown, (), params.sft, training)
    else:
        engine = training_engine(model, folder, tokenizer, params.model, params.rollout, False)
        sampler = Sampler(engine, tokenizer, params.prompt)
        problems = [
            Problem(id=f"p{i}", question=f"{i:0{PROMPT}d}", answers=("1",), source="s", split="rl") for i in range(64)
        ]
        train_rl(model, sampler, problems, (), Lengths({}), params.rl, training)
    planned = plan_memory(
        shape_of(AutoConfig.from_pretrained(folder)),
        params,
        stage,
        device.type,
        prompt_tokens=PROMPT,
        response_tokens=RESPONSE,
    )
    measured = float(torch.cuda.max_memory_allocated()) + 0.6 * GIB if device.type == "cuda" else peak_resident()
    print(json.dumps({"planned": planned.peak, "measured": measured, "largest": planned.largest_phase}))


def peak_resident() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return float(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status")


def measure(case: str) -> dict[str, float]:
    """The figures of the process that took most, if there are several."""
    with tempfile.TemporaryDirectory() as logs:
        ranks = str(params_of(case).run.processes)
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks,
             "--log-dir", logs, "--redirects", "3", __file__, "--run", case],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip
        outputs = [file.read_text() for file in sorted(Path(logs).glob("**/stdout.log"))]
        if done.returncode:
            sys.exit("\n".join(file.read_text() for file in sorted(Path(logs).glob("**/stderr.log"))))
    results = [json.loads(output[output.rindex('{"planned"') :].splitlines()[0]) for output in outputs]
    return max(results, key=lambda result: float(result["measured"]))


def main(cases: list[str]) -> None:
    print(f"{'case':<34} {'planned':>9} {'measured':>9} {'off by':>7}   largest phase")
    for case in cases or CASES:
        result = measure(case)
        planned, measured = result["planned"] / GIB, result["measured"] / GIB
        off = planned / measured - 1
        print(f"{case:<34} {planned:>6.2f} GiB {measured:>5.2f} GiB {off:>+7.1%}   {result['largest']}", flush=True)


if __name__ == "__main__":
    run(sys.argv[2]) if sys.argv[1:2] == ["--run"] else main(sys.argv[1:])
