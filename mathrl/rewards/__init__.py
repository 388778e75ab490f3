r"""Text in, verdict out: the verifier of mathematical answers and the rewards composed from it.

>>> from mathrl.rewards import grade
>>> grade("The answer is $\\boxed{\\frac{1}{2}}$.", "0.5").correct
True
"""

from mathrl.rewards.batch import grade_batch
from mathrl.rewards.compose import Reward, RewardFunction, RewardInput, build_reward
from mathrl.rewards.grade import grade, warm_up
from mathrl.rewards.verdict import Verdict

__all__ = [
    "Reward",
    "RewardFunction",
    "RewardInput",
    "Verdict",
    "build_reward",
    "grade",
    "grade_batch",
    "warm_up",
]
