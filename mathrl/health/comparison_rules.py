"""The rules that compare two measures of one thing (see `mathrl.health.rules`): they show what neither shows alone."""

import math
from collections.abc import Sequence

from mathrl.health.rules import ACCURACY, DEV, Diagnosis, Row, Rule, accuracy, gain, mean, now
from mathrl.params.advantage import DrGrpo, Gdpo, Grpo, Rloo
from mathrl.params.curriculum import Shuffled
from mathrl.params.health import Health
from mathrl.params.train import Rl

# What the verifier takes for right, and what another grader says of the same responses.
GRADERS = (
    ("verifier/second_passed", "verifier/second_accuracy", "reward.second_grader"),
    ("verifier/exact_passed", "verifier/exact_accuracy", "an exact grader"),
)
CENTRED = (Grpo, DrGrpo, Rloo, Gdpo)
ROUNDING = 1e-3
FEW, RARE = 50, 0.1  # responses and shares that are too small to compare verdicts


def rises(
    rows: Sequence[Row], health: Health, paid: str, right: str, spread: float | None = None
) -> tuple[str, str] | None:
    """Evidence that what is paid rose in the run and that what is right did not rise with it, else None.

    Both rises are in standard deviations of one response, so that the scale of a reward does not matter; that of a
    share p is sqrt(p (1 - p)).
    """
    first = rows[: health.window]
    figures = mean(first, paid), now(rows, health, paid), mean(first, right), now(rows, health, right)
    if None in figures or len(rows) < 2 * health.window:
        return None
    paid_before, paid_now, right_before, right_now = (float(figure or 0.0) for figure in figures)
    paid_rise = (paid_now - paid_before) / (spread or _spread(paid_before))
    right_rise = (right_now - right_before) / _spread(right_before)
    if paid_rise - right_rise <= health.hacking or right_rise >= paid_rise / 2 or right_now >= health.solved:
        return None
    return f"from {paid_before:.3f} to {paid_now:.3f}", f"from {right_before:.3f} to {right_now:.3f}"


def _spread(share: float) -> float:
    return math.sqrt(max(0.01, share * (1 - share)))


def reward_hacking(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    for passed, right, grader in GRADERS:
        if evidence := rises(rows, health, passed, right):
            return (
                f"the share that the verifier accepts rose {evidence[0]}, accuracy of the same responses by {grader} "
                f"went {evidence[1]}",
                "the policy found a hole in the verifier: answers that it accepts and that are not right",
                "read responses with `mathrl rollouts`, measure the verifier with `mathrl audit`, mend it, train again",
            )
    return None


def reward_alone(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    spread = mean(rows[: health.window], "reward/overall_std")
    evidence = rises(rows, health, "reward/overall", ACCURACY, spread) if spread else None
    if evidence is None:
        return None
    return (
        f"the reward rose {evidence[0]}, accuracy went {evidence[1]}",
        "the policy earns what is paid beside right answers: form, length, a score, or a hole in a function",
        "read responses with `mathrl rollouts`, lower the weight of the part that rose in reward.parts",
    )


def agreement(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    """Cohen's kappa of the verdicts that the trainer is told and the exact grader's, on the same responses."""
    names = ("verifier/exact_agreement", "verifier/exact_passed", "verifier/exact_accuracy")
    agreed, passed, right = (now(rows, health, name) for name in names)
    graded = sum(row.get("verifier/exact_graded", 0.0) for row in rows[-health.window :])
    if agreed is None or passed is None or right is None or graded < FEW:
        return None
    # A grader that finds hardly any response right is too coarse for these answers, and says nothing.
    if not RARE < passed < 1 - RARE or not max(RARE, passed / 2) < right < 1 - RARE:
        return None
    chance = passed * right + (1 - passed) * (1 - right)
    if (agreed - chance) / (1 - chance) >= health.agreement:
        return None
    return (
        f"on {graded:.0f} responses the verdicts agree with an exact grader's in {agreed:.0%}, by chance {chance:.0%}",
        "rewards reach other responses than they are for, or the verifier judges something else than the answer",
        "compare responses and verdicts with `mathrl rollouts`, check the order of what the reward function returns",
    )


def dev_gap(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    if not isinstance(rl.curriculum, Shuffled) or DEV not in rows[-1] or len(rows) < health.window:
        return None
    dev, rollouts = rows[-1][DEV], accuracy(rows, health)
    problems = max(1.0, rows[-1].get("dev/problems", 1.0))
    chance = 2 * math.sqrt(max(0.01, rollouts * (1 - rollouts)) / problems)
    if rollouts - dev <= health.dev_gap + chance:
        return None
    return (
        f"accuracy of the rollouts is {rollouts:.3f}, on dev {dev:.3f} ({problems:.0f} problems)",
        "the training prompts give answers away, dev problems are asked in another form, or they are harder",
        "compare a training prompt with a dev prompt (prompt.template, prompt.routes), check both splits' levels",
    )


def centring(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = rows[-1].get("advantage/mean")
    if value is None or not isinstance(rl.advantage, CENTRED) or abs(value) <= ROUNDING:
        return None
    return (
        f"the advantages of a step have the mean {value:.3g}, where {rl.advantage.type} makes it 0",
        "no baseline was subtracted, or responses are compared with those of other groups",
        "look at the function that makes advantages, and at how responses are put into groups",
    )


def entropy_rise(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    measured = [row for row in rows if "entropy" in row]  # a step that trains no group measures none
    value, first = now(rows, health, "entropy"), mean(measured[: health.window], "entropy")
    if value is None or first is None or len(measured) < 2 * health.window or accuracy(rows, health) >= health.solved:
        return None
    if value <= health.entropy_rise * first or gain(rows, health) >= health.progress:
        return None
    return (
        f"entropy of the trained groups rose from {first:.3f} to {value:.3f} per token, "
        f"accuracy by {gain(rows, health):+.3f}",
        "the entropy bonus outweighs the reward"
        if rl.loss.entropy_coef
        else "updates without a signal blur the policy",
        "lower rl.loss.entropy_coef" if rl.loss.entropy_coef else "look at the rewards, lower the learning rate",
    )


def empty(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = now(rows, health, "rollout/empty_groups")
    if value is None or len(rows) < health.window or value <= health.empty:
        return None
    return (
        f"to {value:.0%} of the prompts every response is empty",
        "a rank or a server of the sampler answers nothing, or the policy learned to end at once",
        "look at the log of each rank and at the servers, read responses with `mathrl rollouts`",
    )


COMPARISON_RULES = (
    Rule("reward_hacking", "red", reward_hacking),
    Rule("centring", "red", centring),
    Rule("agreement", "red", agreement),
    Rule("reward_alone", "yellow", reward_alone),
    Rule("dev_gap", "yellow", dev_gap),
    Rule("entropy_rise", "yellow", entropy_rise),
    Rule("empty", "yellow", empty),
)
