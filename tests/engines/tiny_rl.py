"""Two steps of RL on a tiny model with a reward that differs between its responses, for the vLLM tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mathrl.core.metrics import JsonlSink, without_timings
from mathrl.grading import Verdict
from mathrl.learners.distributed import Ranks
from mathrl.params.run import FreshModel, Model, Reward
from mathrl.params.train import Rl
from mathrl.rewards.compose import RewardFunction, RewardInput, RewardResult
from mathrl.rollout.sampler import Sampler
from mathrl.trainers.rl import train_rl
from mathrl.trainers.training_run import TrainingRun
from tests.trainers.small import PROBLEMS, short_rl

MODEL = Model(
    base=FreshModel(hidden_size=64, intermediate_size=96, layers=2, heads=2, kv_heads=1, max_positions=128),
    precision="float32",
)
STEPS = short_rl(steps=2, dev={"every": 1}, importance=None, ema=Rl().ema, loss={"skip_zero_variance": True})


class Letters(RewardFunction):
    """A reward that differs between the responses of a random model: the share of small letters."""

    def __init__(self) -> None:
        super().__init__(Reward())

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        shares = [sum(each.islower() for each in item.response) / max(1, item.length) for item in items]
        return [RewardResult(each, each > 0.3, {}, Verdict(False, None, "none", "", 0.0)) for each in shares]


def run_rl(network: Any, sampler: Sampler, params: Rl, ranks: Ranks, where: Path) -> list[dict[str, float]]:
    """Train; the rows of the metrics, at rank 0."""
    train_rl(
        network,
        sampler,
        PROBLEMS,
        PROBLEMS[:2],
        Letters(),
        params,
        TrainingRun(ranks, where, 0, lambda _: JsonlSink(where / "metrics.jsonl")),
    )
    return without_timings(where / "metrics.jsonl") if ranks.rank == 0 else []
