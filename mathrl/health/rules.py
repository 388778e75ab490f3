"""The rules of `mathrl.health.watch`, each a pure function of the rows so far.

`now` is a metric's mean over the last health.window rows, `then` its mean over the window health.patience steps
earlier, or over the run's first one. Accuracy is that on dev where it was evaluated in between, else that of the
rollouts.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mathrl.core.statistics import sum_in_order
from mathrl.health.mismatch import ALIGNMENT, LAG, alignment_metric
from mathrl.params.curriculum import Shuffled
from mathrl.params.train import Rl
from mathrl.params.training import Health

Row = Mapping[str, float]
Diagnosis = tuple[str, str, str]  # evidence, cause, remedy
ACCURACY, DEV = "reward/accuracy", "dev/accuracy"
TOTALS = ("reward/overall", "reward/overall_std", ACCURACY)
NEVER, SUDDEN, TIMES_START = 0.005, 0.1, 5.0


@dataclass(frozen=True)
class Rule:
    """A named diagnosis; `colour` red: the result cannot be trusted; yellow: it needs a look."""

    name: str
    colour: str
    diagnose: Callable[[Sequence[Row], Health, Rl], Diagnosis | None]
    needs_rl: bool = True


def mean(rows: Sequence[Row], name: str) -> float | None:
    """The metric's mean over the rows that have it; None if no row has."""
    values = [row[name] for row in rows if name in row]
    return sum_in_order(values) / len(values) if values else None


def now(rows: Sequence[Row], health: Health, name: str) -> float | None:
    return mean(rows[-health.window :], name)


def earliest(rows: Sequence[Row], name: str) -> float | None:
    """The metric's first value; a step may have none."""
    return next((row[name] for row in rows if name in row), None)


def then(rows: Sequence[Row], health: Health, name: str) -> float | None:
    """The mean of the earlier window; None if the run is too short for two windows."""
    if len(rows) < 2 * health.window:
        return None
    first = max(0, len(rows) - health.window - health.patience)
    return mean(rows[first : first + health.window], name)


def windows(rows: Sequence[Row], health: Health) -> list[float]:
    """The accuracy of the rollouts over each window of the run so far."""
    size = health.window
    return [mean(rows[end - size : end], ACCURACY) or 0.0 for end in range(size, len(rows) + 1, size)]


def gain(rows: Sequence[Row], health: Health) -> float:
    """The rise of accuracy from `then` to `now`; 0 if the run is too short for both."""
    first = max(0, len(rows) - health.window - health.patience)
    dev = [row[DEV] for row in rows[first:] if DEV in row]
    if len(dev) >= 2:
        return dev[-1] - dev[0]
    before = then(rows, health, ACCURACY)
    return 0.0 if before is None else accuracy(rows, health) - before


def accuracy(rows: Sequence[Row], health: Health) -> float:
    return now(rows, health, ACCURACY) or 0.0


def chance(first: float, second: float, problems: float) -> float:
    """Two standard errors of the difference between two accuracies, each over so many problems."""
    share = (first + second) / 2
    return 2 * math.sqrt(2 * share * (1 - share) / problems)


def comes_with_right(rows: Sequence[Row], health: Health, name: str) -> bool:
    """Whether the responses that have more of it are the right ones: then its growth is how the policy learns."""
    value = now(rows, health, f"rollout/{name}_accuracy_correlation")
    return value is not None and value >= health.right_correlation


def learning_rate(rl: Rl) -> float:
    """The highest rate of any weight."""
    return max(rl.optimizer.lr, rl.optimizer.adamw_lr)


def too_fast(rl: Rl | None, health: Health) -> str | None:
    if rl is not None and learning_rate(rl) > health.lr:
        return f"the learning rate {learning_rate(rl):g} is above health.lr = {health.lr:g}"
    return None


def loss(rows: Sequence[Row], health: Health, rl: Rl | None) -> Diagnosis | None:
    row = rows[-1]
    bad = [
        f"{name} is {row[name]:.4g}"
        for name in ("loss", "actor_loss", "critic_loss", "grad_norm")
        if name in row and (not math.isfinite(row[name]) or (name != "grad_norm" and abs(row[name]) > health.loss))
    ]
    skipped = row.get("skipped_updates", 0.0) - (rows[-2] if len(rows) > 1 else {}).get("skipped_updates", 0)
    if skipped > 0:
        bad.append(f"{skipped:.0f} updates were skipped for a non-finite loss or gradient")
    if not bad:
        return None
    cause = too_fast(rl, health) or "updates that are too large, or a non-finite reward"
    return "; ".join(bad), cause, "lower the learning rate, set optimizer.clip_norm, look at the rewards"


def collapse(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    size = health.window
    dev = [row[DEV] for row in rows if DEV in row]
    problems = earliest(rows, "dev/problems") or math.inf
    falls = [("on dev", max(dev), dev[-1], problems)] if len(dev) >= 2 else []
    # In another order the problems become harder by design. Dev accuracy alone is late: it is that of averaged weights.
    if isinstance(rl.curriculum, Shuffled) and len(rows) >= 2 * size:
        asked = size * rl.prompts_per_step
        falls.append(("of the rollouts", max(windows(rows, health)), accuracy(rows, health), asked))
    fell = [
        f"{where} fell from {best:.3f} to {last:.3f}"
        for where, best, last, asked in falls
        if best - last > max(health.drop, chance(best, last, asked))
    ]
    if not fell:
        return None
    evidence = f"accuracy {' and '.join(fell)}"
    entropies = mean(rows[:size], "entropy"), now(rows, health, "entropy")
    if entropies[0] is not None and entropies[1] is not None:
        evidence += f", entropy of the trained groups from {entropies[0]:.3f} to {entropies[1]:.3f}"
    cause = too_fast(rl, health) or "updates that are too large, or a reward that pays for something else"
    return evidence, cause, "lower the learning rate, start from an earlier checkpoint, read the responses"


def kl(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = now(rows, health, "kl")
    if value is None or value <= health.kl or gain(rows, health) >= health.progress:
        return None
    before = mean(rows[-2 * health.window : -health.window] or rows[:1], "kl")
    rising = before is not None and value > 1.5 * max(before, 0.0)
    fast = too_fast(rl, health)
    if not rising and not fast:
        return None
    evidence = f"KL to the reference is {value:.3g} per token, {before or 0.0:.3g} before"
    cause = fast or "the policy leaves the reference without becoming better"
    return evidence, cause, "lower the learning rate, raise rl.kl.coef or set rl.kl.controller"


def mismatch(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    name = alignment_metric(rows[-1])
    value = now(rows, health, name)
    if value is None or value <= health.alignment or stale_sampler(rows, health, rl):
        return None
    if len(rows) < health.window and (earliest(rows, name) or 0.0) <= health.alignment:
        return None  # too early to distinguish from a stale sampler
    return (
        f"log-prob alignment of sampler and trainer is {value:.3f}",
        "they do not compute the same model: precision, temperature, template or truncation of the logits",
        "set rollout to the same precision, sample with top-p 1, or correct it with rl.importance",
    )


def stale_sampler(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value, first = now(rows, health, ALIGNMENT), earliest(rows, ALIGNMENT)
    if value is None or first is None or len(rows) < health.window or rows[-1].get(LAG):
        return None
    limit = 1 + max((health.alignment - 1) / TIMES_START, TIMES_START * (first - 1))
    if value <= limit:
        return None
    return (
        f"log-prob alignment of sampler and trainer was {first:.3f} at first and is {value:.3f}",
        "the sampler does not receive the trained weights",
        "look at the weight sync of the rollout engine (tied heads, adapters), or use rollout.engine torch",
    )


def importance(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    bad = []
    for name in ("importance/mean", "ratio/mean"):
        value = now(rows, health, name)
        if value is not None and abs(value - 1) > health.importance:
            bad.append(f"{name} is {value:.3f}, not 1")
    masked = now(rows, health, "importance/masked_share")
    if masked is not None and masked > health.importance:
        bad.append(f"{masked:.0%} of the tokens are outside the importance bounds")
    if not bad:
        return None
    many = rl.epochs * rl.minibatches > 1
    cause = "too many or too large updates per batch" if many else "sampler and trainer are not the same policy"
    remedy = "fewer rl.minibatches or rl.epochs, a lower rate" if many else "look at mismatch, stale_sampler"
    return "; ".join(bad), cause, remedy


def entropy(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = now(rows, health, "entropy")
    if value is None or len(rows) < health.window or value >= health.entropy:
        return None
    if accuracy(rows, health) >= health.solved:
        return None
    return (
        f"entropy of the trained groups is {value:.4f} per token at accuracy {accuracy(rows, health):.3f}",
        "the policy has one response per problem left, so groups have zero variance",
        "raise rl.loss.high, rl.temperature or rl.loss.entropy_coef, lower the learning rate",
    )


def length(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value, before = now(rows, health, "response_length"), then(rows, health, "response_length")
    if value is None or not before or value < health.length_rise * before or gain(rows, health) >= health.progress:
        return None
    if comes_with_right(rows, health, "length"):
        return None
    evidence = f"responses grew from {before:.1f} to {value:.1f} tokens, accuracy by {gain(rows, health):+.3f}"
    correlation = now(rows, health, "rollout/length_reward_correlation")
    if correlation is not None:
        evidence += f", correlation of length and reward {correlation:+.2f}"
    if correlation is not None and correlation > 0.2:
        return evidence, "the reward pays for length", "look at reward.parts; add the part overlong"
    cause = "the loss favours long wrong responses, or responses no longer end"
    return evidence, cause, "set rl.loss.aggregation token_mean, add the part overlong, look at truncated responses"


def repetition(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value, first = now(rows, health, "rollout/repetition"), mean(rows[: health.window], "rollout/repetition")
    if value is None or first is None or len(rows) < 2 * health.window:
        return None
    if value <= health.repetition or value <= 2 * first or gain(rows, health) >= health.progress:
        return None
    return (
        f"{value:.0%} of the 16-grams of a response occur earlier in it ({first:.0%} at first)",
        "responses go in circles: a reward that pays for length, or a policy that left its language",
        "add the reward part repetition or overlong, lower the learning rate",
    )


def no_success(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    if len(rows) < 2 * health.window or max(row.get(ACCURACY, 0.0) for row in rows) > NEVER:
        return None
    evidence = f"no response of {len(rows)} steps was right"
    cut, start_entropy = mean(rows, "rollout/truncated_share") or 0.0, mean(rows[: health.window], "entropy") or 0.0
    if cut > 0.5:
        # Entropy would distinguish the two, but zero-variance groups have no forward pass.
        return (
            evidence + f"; {cut:.0%} are cut off",
            "the prompt is not what the model was trained on, so it finds no end; or no room to answer",
            "compare prompts with those of the SFT set (prompt.template), then raise rl.max_tokens",
        )
    if start_entropy > 1:
        evidence += f"; entropy at first {start_entropy:.2f} per token"
        return evidence, "the prompt is not what the model was trained on", "look at prompt.template"
    return (
        evidence,
        "the answer is not found in the responses, or the problems are too hard",
        "read responses with `mathrl grade`, look at reward.extraction and prompt.template, take easier ones",
    )


def flat(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    if len(rows) < health.patience or accuracy(rows, health) >= health.solved:
        return None
    values = windows(rows, health)
    dev = [row[DEV] for row in rows if DEV in row]
    if max(values) - values[0] >= health.progress or (dev and max(dev) - dev[0] >= health.progress):
        return None
    if no_success(rows, health, rl):
        return None
    return (
        f"accuracy has not risen in {len(rows)} steps: {values[0]:.3f} at first, {values[-1]:.3f} now",
        "no signal, or steps that are too small",
        "look at zero_variance and grad_norm, choose problems of pass rate 0.1 to 0.9 (mix), raise rl.optimizer.lr",
    )


def spikes(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    recent = [row[ACCURACY] for row in rows[-2 * health.window - 1 :] if ACCURACY in row]
    if len(recent) < 2 * health.window + 1:
        return None
    jumps = [after - before for before, after in itertools.pairwise(recent)]
    size = math.sqrt(sum_in_order(jump * jump for jump in jumps) / len(jumps))
    # By chance the means of two batches of n problems differ with a standard deviation of at most √(2 · ¼ / n).
    if size <= max(SUDDEN, 3 * math.sqrt(0.5 / rl.prompts_per_step)):
        return None
    return (
        f"accuracy of the rollouts jumps by {size:.3f} from step to step",
        "updates that are too large, or batches of very different problems",
        "lower the learning rate, take more rl.prompts_per_step, set rl.curriculum shuffled",
    )


def zero_variance(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = now(rows, health, "rollout/zero_variance_share")
    if value is None or rl.group_size < 2 or len(rows) < health.window or value <= health.zero_variance:
        return None
    if accuracy(rows, health) >= health.solved:
        return None
    if max(row.get(ACCURACY, 0.0) for row in rows) <= NEVER:
        return (
            f"{value:.0%} of the groups have no difference in reward, since no response was right yet",
            "the problems are too hard, or the prompt is not what the model was trained on",
            "read responses, look at prompt.template and reward.extraction, take easier problems",
        )
    hard = accuracy(rows, health) < 0.1
    return (
        f"{value:.0%} of the groups have no difference in reward at accuracy {accuracy(rows, health):.3f}",
        "the problems are too hard" if hard else "problems are either always solved or never",
        "choose problems of pass rate 0.1 to 0.9 (mix), set rl.dynamic_sampling, larger rl.group_size",
    )


def truncated_responses(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = now(rows, health, "rollout/truncated_share")
    if value is None or len(rows) < health.window or value <= health.truncated:
        return None
    return (
        f"{value:.1%} of the responses are cut off at rl.max_tokens = {rl.max_tokens}",
        "responses need more room, or do not end",
        "raise rl.max_tokens, add the reward part overlong, or set rl.truncated mask",
    )


def critic(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = now(rows, health, "critic/explained_variance")
    warm = rl.critic.warmup_steps if rl.critic else 0
    if value is None or len(rows) < warm + health.patience or value > 0:
        return None
    return (
        f"the critic explains {value:.2f} of the returns' variance",
        "it does not learn, so its values only add noise to the advantages",
        "raise optimizer.lr or warmup_steps of rl.advantage.critic, start it from a reward model (its path)",
    )


def reward_parts(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    if accuracy(rows, health) >= health.solved or len(rows) < health.patience or gain(rows, health) >= health.progress:
        return None
    names = {name for name in rows[-1] if name.startswith("reward/") and name not in TOTALS}
    for name in sorted(names):
        value, before = now(rows, health, name), then(rows, health, name)
        part = name.removeprefix("reward/")
        if value is None or before is None or value - before <= SUDDEN:
            continue
        if comes_with_right(rows, health, f"part_{part}"):
            continue
        return (
            f"{name} rose from {before:.3f} to {value:.3f}, accuracy by {gain(rows, health):+.3f}",
            "the policy earns the easier part of the reward alone",
            f"lower the weight of {part} in reward.parts",
        )
    return None


def timeouts(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    recent = rows[-health.window :]
    graded = sum(row.get("verifier/graded", 0.0) for row in recent)
    late = sum(row.get("verifier/timeouts", 0.0) for row in recent)
    if not graded or late / graded <= health.timeouts:
        return None
    return (
        f"{late:.0f} of {graded:.0f} verifications timed out and count as wrong",
        "answers that are costly to compare, or a machine that is too busy",
        "read such responses, leave a core to the verifier, raise its time limit",
    )


def dropped_groups(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    dropped = now(rows, health, "rollout/dropped_groups")
    if dropped is None or rl.asynchronous is None or len(rows) < health.window:
        return None
    share = dropped / (dropped + rl.prompts_per_step)
    if share <= health.dropped_groups:
        return None
    return (
        f"{share:.0%} of the groups were dropped, being more than {rl.asynchronous.staleness} weight versions old",
        "some responses take longer than the bound allows, and training sees fewer long ones",
        "raise rl.asynchronous.staleness, lower rl.max_tokens, or give the sampler more of the machine",
    )


RED = (collapse, kl, mismatch, stale_sampler, importance)
YELLOW = (
    *(entropy, length, repetition, no_success, flat, spikes),
    *(zero_variance, critic, reward_parts, timeouts, dropped_groups),
)
RULES = (
    Rule("loss", "red", loss, needs_rl=False),  # type: ignore[arg-type]
    *(Rule(rule.__name__, "red", rule) for rule in RED),
    *(Rule(rule.__name__, "yellow", rule) for rule in YELLOW),
    Rule("truncated", "yellow", truncated_responses),
)
