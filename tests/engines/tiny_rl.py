"""Two steps of RL on a tiny model with a reward that differs between its responses, for the vLLM tests."""

from collections.abc import Sequence

from mathrl.grading.verdict import Verdict
from mathrl.params.run import FreshModel, Model, Reward
from mathrl.params.train import Optimizer, Rl
from mathrl.rewards.compose import RewardFunction, RewardInput, RewardResult

MODEL = Model(
    base=FreshModel(hidden_size=64, intermediate_size=96, layers=2, heads=2, kv_heads=1, max_positions=128),
    precision="float32",
)
STEPS = Rl(
    steps=2,
    prompts_per_step=4,
    group_size=4,
    max_tokens=10,
    eval_every=1,
    eval_samples=1,
    lr=1e-2,
    optimizer=Optimizer(type="adamw", warmup_steps=0),
    importance=None,
)


class Letters(RewardFunction):
    """A reward that differs between the responses of a random model: the share of small letters."""

    def __init__(self) -> None:
        super().__init__(Reward())

    def score(self, items: Sequence[RewardInput]) -> list[RewardResult]:
        shares = [sum(each.islower() for each in item.response) / max(1, item.length) for item in items]
        return [RewardResult(each, each > 0.3, {}, Verdict(False, None, "none", "", 0.0)) for each in shares]
