"""A GRPO step with the settings of the preset qwen2.5-0.5b-gsm8k, split into its parts, with either engine.

128 prompts of 128 tokens x 8 responses of 280 tokens, the mean length that such a run is expected to have: random
weights end no response before its limit. Rewards are random, so that every group has a gradient. The first of four
steps does not count.
"""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.workload import GIB, free, gpu_peak, preset_params, write_model
from mathrl.core.metrics import JsonlSink
from mathrl.core.types import Problem
from mathrl.grading import Verdict
from mathrl.learners.distributed import Ranks
from mathrl.models.device import torch_settings
from mathrl.models.load import load_model, load_tokenizer
from mathrl.models.model_shape import shape_of
from mathrl.planning.memory import plan_memory
from mathrl.rewards.compose import RewardFunction, RewardResult
from mathrl.rollout.open_engine import training_engine
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.rl import train_rl
from mathrl.trainers.training_run import TrainingRun

PRESET = "qwen2.5-0.5b-gsm8k"
PROMPT, RESPONSE, STEPS = 128, 280, 4
PARTS = ("step", "rollout", "reward", "scores", "update", "sync")
ALIGNMENT = 1.05  # mean exp |trainer - sampler| of a token, above which a run is not trusted


class RandomReward(RewardFunction):
    """A reward that every group has a gradient with."""

    draw = random.Random(0)

    def score(self, items: Any) -> list[RewardResult]:
        verdict = Verdict(False, None, "none", "", 0.0)
        return [RewardResult(self.draw.random(), False, {}, verdict) for _ in items]


def main(
    device: torch.device, toy: bool, engine: str = "torch", note: Callable[[dict[str, Any]], None] = lambda result: None
) -> dict[str, Any]:
    """`note` is given the result after every step from the second on."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        source = write_model(Path(folder) / "model", "toy" if toy else "0.5B", device)
        params = _params(source, engine, toy)
        tokenizer, model = load_tokenizer(source), load_model(source, params.model, device)
        shape, before = shape_of(model.config), torch_settings()
        sampler = Sampler(
            training_engine(model, source, tokenizer, params.model, params.rollout, False), tokenizer, params.prompt
        )
        changed = [name for name, value in torch_settings().items() if value != before[name]]
        problems = [
            Problem(id=f"p{number}", question=str(number % 10) * PROMPT, answers=("1",), source="random", split="rl")
            for number in range(params.rl.prompts_per_step * STEPS)
        ]

        def result() -> dict[str, Any]:
            mean = {key: sum(row.get(key, 0.0) for row in rows[1:]) / len(rows[1:]) for key in rows[1]}
            total = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
            planned = plan_memory(shape, params, "rl", device.type, gpu_memory=float(total))
            responses, alignment = params.rl.prompts_per_step * params.rl.group_size, mean["rollout/logprob_alignment"]
            failed = [f"opening the engine changed torch's {name}" for name in changed]
            if not alignment <= ALIGNMENT:
                failed.append(f"log-probs of sampler and trainer: alignment {alignment:.3f}, limit {ALIGNMENT}")
            return {
                "engine": engine,
                "seconds": {part: mean.get(f"time/{part}", 0.0) for part in PARTS},
                "sampled_tokens_per_s": responses * mean["response_length"] / mean["time/rollout"],
                "trained_tokens_per_s": mean["trained_tokens"] / mean["time/update"],
                "alignment": alignment,
                "canary": mean.get("rollout/canary_gap", 0.0),
                "planned_gib": planned.peak / GIB,
                "peak_gib": gpu_peak(device) / GIB,
                "failed": failed,
            }

        class Sink(JsonlSink):
            def log(self, step: int, metrics: Any) -> None:
                rows.append(dict(metrics))
                if step == 1:
                    free(device)  # the peak is that of the steps which count
                else:
                    note(result())

        ranks, state = Ranks(device, params.training), Path(folder) / "state"
        state.mkdir()
        run = TrainingRun(ranks, state, 0, lambda resume_after: Sink(state / "metrics.jsonl"))
        train_rl(model, sampler, problems, (), RandomReward(params.reward), params.rl, run)
        return result()


def _params(source: Path, engine: str, toy: bool) -> Any:
    sizes: tuple[str, ...] = ("rl.prompts_per_step=4", "rl.group_size=4", "rl.minibatches=1") if toy else ()
    tokens = 32 if toy else RESPONSE
    large = torch.cuda.is_available() and torch.cuda.get_device_properties(0).total_memory > 70 * GIB
    if large and not toy:  # the preset is for 24 GB, and samples 256 responses at a time there
        sizes += ("hardware=1x80GB", "rollout.max_sequences=1024")
    return preset_params(
        PRESET, source, f"prompt.max_tokens={PROMPT}", f"rl.steps={STEPS}", f"rl.max_tokens={tokens}",
        f"rollout.engine={engine}",
        f"rollout.vllm.max_model_length={PROMPT + tokens}", *sizes,
    )  # fmt: skip
