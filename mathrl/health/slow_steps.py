"""The rules about where the time of a step goes: to sampling, to one long response, to waiting, to a slow rank.

They judge the median of the last `health.window` steps, so that one step beside a busy neighbour raises nothing.
"""

import statistics
from collections.abc import Callable, Sequence

from mathrl.health.rules import Diagnosis, Row, Rule
from mathrl.params.train import Rl
from mathrl.params.training import Health

SHORTEST_TAIL = 100  # tokens; a batch waits for shorter ones no longer than for the next request
BETWEEN_UPDATES = ("time/step", "time/sync_wait", "time/sync", "time/eval")  # of a trainer that samples meanwhile


def recent_median(rows: Sequence[Row], health: Health, figure: Callable[[Row], float | None]) -> float | None:
    """The median of a figure over the last window; None if the run is shorter, or a step of it has no figure."""
    values = [figure(row) for row in rows[-health.window :]]
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) == len(values) == health.window else None


def rollout_share(row: Row) -> float | None:
    """The share of a step that its rollouts take; None without both times."""
    return row["time/rollout"] / row["time/step"] if {"time/rollout", "time/step"} <= row.keys() else None


def waiting_share(row: Row, *names: str) -> float | None:
    """The share of the time between two updates that these waits take; None if one was not measured."""
    if not {*names, "time/step"} <= row.keys():
        return None
    return sum(row[name] for name in names) / sum(row.get(name, 0.0) for name in BETWEEN_UPDATES)


def sampling_share(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    if rl.asynchronous is not None:
        return None
    value = recent_median(rows, health, rollout_share)
    if value is None or value <= health.sampling_share:
        return None
    return (
        f"sampling takes {value:.0%} of a step's time",
        "the sampler is slow for the number and length of the responses, or a few long ones keep it waiting",
        "set rollout.engine vllm, rl.asynchronous (samples meanwhile), or a lower rl.max_tokens; look at long_tail",
    )


def long_tail(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = recent_median(rows, health, lambda row: row.get("rollout/longest_to_median"))
    if value is None or value <= health.long_tail:
        return None
    longest = recent_median(rows, health, lambda row: row.get("response_length_max"))
    if longest is not None and longest < SHORTEST_TAIL:
        return None
    share = recent_median(rows, health, rollout_share)
    if share is not None and share < 0.5:  # then it costs little
        return None
    return (
        f"the longest response of a step is {value:.1f} times as long as the median one",
        "the batch waits for a few long responses, while the sampler has little to do",
        "set rl.asynchronous (cuts responses into segments), lower rl.max_tokens, or add the reward part overlong",
    )


def idle_trainer(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = recent_median(rows, health, lambda row: waiting_share(row, "time/rollout_wait", "time/sync_wait"))
    if value is None or value <= health.idle:
        return None
    return (
        f"the trainer waits for the sampler in {value:.0%} of its time",
        "sampling is the slower half, or a segment of a response is long",
        "give the sampler more of the machine, lower rl.asynchronous.segment_tokens or rl.max_tokens",
    )


def idle_sampler(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = recent_median(rows, health, lambda row: waiting_share(row, "time/sampler_wait"))
    if value is None or value <= health.idle:
        return None
    return (
        f"the sampler waits for the trainer in {value:.0%} of its time",
        "the update is the slower half, or rl.asynchronous.staleness leaves no room to sample ahead",
        "give the trainer more of the machine, raise rl.tokens_per_microbatch or rl.asynchronous.staleness",
    )


def slow_rank(rows: Sequence[Row], health: Health, rl: Rl) -> Diagnosis | None:
    value = recent_median(rows, health, lambda row: row.get("time/slowest_rank_ratio"))
    if value is None or value <= health.slow_rank:
        return None
    ranks = {row.get("time/slowest_rank") for row in rows[-health.window :]}
    rank = ranks.pop()
    if ranks or rank is None:  # now one, now another: their responses differ in length
        return None
    return (
        f"rank {rank:.0f} was the slowest to sample in each of {health.window} steps: {value:.1f} times the median of "
        "the other ranks",
        "its node or GPU is slower or shared with other work, and all ranks wait for it",
        "look at that rank's log and its node (clock, temperature, other processes), or leave the node out",
    )


SLOW_RULES = tuple(
    Rule(rule.__name__, "yellow", rule) for rule in (sampling_share, long_tail, idle_trainer, idle_sampler, slow_rank)
)
