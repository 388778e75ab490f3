"""The verifier's counters over the ranks of a stage."""

from collections.abc import Mapping, Sequence

from mathrl.core.statistics import sum_in_order

# Shares of another count than what was graded.
SHARES_OF = {
    "verifier/disagreement": "verifier/second_graded",
    "verifier/second_accuracy": "verifier/second_graded",
    "verifier/second_passed": "verifier/second_graded",
    "verifier/exact_accuracy": "verifier/exact_graded",
    "verifier/exact_passed": "verifier/exact_graded",
    "verifier/exact_agreement": "verifier/exact_graded",
    "verifier/model_disagreement": "verifier/model_judged",
}


def merged_counters(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The verifier's counters of all ranks: counts summed, shares and means weighted by what they are of.

    What the second grader, the exact one or the judge model says is a share of what it judged, the other shares are of
    what was graded. Seconds go under time/, since they differ from run to run.

    >>> ranks = [{"verifier/second_graded": 1.0, "verifier/disagreement": 1.0}, {"verifier/second_graded": 0.0}]
    >>> merged_counters(ranks)["verifier/disagreement"]
    1.0
    """
    merged: dict[str, float] = {}
    for name in sorted({name for share in shares for name in share}):
        values = [share.get(name, 0.0) for share in shares]
        if name not in SHARES_OF and not name.startswith(("verifier/rule/", "verifier/tier/", "verifier/mean_")):
            merged[name] = sum_in_order(values)
            continue
        counts = [share.get(SHARES_OF.get(name, "verifier/graded"), 0.0) for share in shares]
        weighted = sum_in_order(n * value for n, value in zip(counts, values, strict=True))
        mean = weighted / max(1.0, sum_in_order(counts))
        merged[f"time/{name}" if name.endswith("seconds") else name] = mean
    return merged
