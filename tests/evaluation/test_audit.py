"""The audit's sample and its intervals, with simulated graders and annotators of known error."""

import random
from collections import Counter
from typing import Any

import pytest

from mathrl.core.errors import UserError
from mathrl.evaluation.audit import Label, Sampled, draw_sample, error_rates, stratum_of

# Rule: (responses, share right, false-positive rate, false-negative rate).
POPULATION = {
    "boxed; number": (1300, 0.6, 0.0, 0.0),
    "boxed; structure": (500, 0.5, 0.04, 0.05),
    "boxed; model": (130, 0.3, 0.15, 0.02),
    "last number; number": (40, 0.4, 0.3, 0.3),
    "boxed; words": (6, 0.5, 0.5, 0.5),
}


def responses(seed: int) -> tuple[list[dict[str, Any]], float, float]:
    """Rows with the truth beside the verdict, and the rates of this population."""
    rng, rows = random.Random(seed), []
    for rule, (count, right_share, positives, negatives) in POPULATION.items():
        for number in range(count):
            right = rng.random() < right_share
            correct = rng.random() >= negatives if right else rng.random() < positives
            rows.append(
                {"response": f"{rule} {number}", "truths": ["4"], "rule": rule, "correct": correct, "right": right}
            )
    cells = Counter((row["right"], row["correct"]) for row in rows)
    wrong, right = cells[False, True] + cells[False, False], cells[True, True] + cells[True, False]
    return rows, cells[False, True] / wrong, cells[True, False] / right


def labelled(sample: Any, error: float, seed: int) -> dict[str, Label]:
    rng = random.Random(seed)
    return {item.key: "y" if item.row["right"] == (rng.random() >= error) else "n" for item in sample}


def test_the_intervals_cover() -> None:
    """A 95 % interval covers in at least 92 of 100 populations: where it covers in 98, 91 are one in 10,000."""
    hits, widths, cases = Counter[tuple[int, str]](), Counter[int](), ((60, 0.0), (300, 0.05))
    for seed in range(100):
        rows, positives, negatives = responses(seed)
        for size, error in cases:
            sample, sizes = draw_sample(rows, size, seed)
            rates = error_rates(sample, sizes, labelled(sample, error, seed), annotator_error=error)
            assert rates.false_positives is not None and rates.false_negatives is not None
            hits[size, "positives"] += rates.false_positives.low <= positives <= rates.false_positives.high
            hits[size, "negatives"] += rates.false_negatives.low <= negatives <= rates.false_negatives.high
            widths[size] += rates.false_positives.high - rates.false_positives.low  # type: ignore[assignment]
    assert min(hits.values()) >= 92 and len(hits) == 4, hits
    assert widths[60] / 100 < 0.25 and widths[300] / 100 < 0.15, "an interval that says nothing covers too"
    # Uncorrected, the same labels miss: the test can fail.
    uncorrected = error_rates(sample, sizes, labelled(sample, 0.05, 99))
    assert uncorrected.false_positives is not None and uncorrected.false_positives.low > positives


def test_an_audit_of_everything_is_exact_and_one_without_errors_starts_at_0() -> None:
    rows, positives, negatives = responses(0)
    sample, sizes = draw_sample(rows, 10**6, 0)
    assert len(sample) == len(rows) == sum(sizes.values())
    rates = error_rates(sample, sizes, labelled(sample, 0.0, 0))
    assert rates.false_positives is not None and rates.false_negatives is not None
    for rate, true in ((rates.false_positives, positives), (rates.false_negatives, negatives)):
        assert rate.mean == pytest.approx(true) and rate.high - rate.low < 1e-4
    fine = [row | {"correct": row["right"]} for row in rows]
    sample, sizes = draw_sample(fine, 100, 0)
    none = error_rates(sample, sizes, labelled(sample, 0.0, 0)).false_positives
    assert none is not None and none.low == none.mean == 0 and 0.005 < none.high < 0.1


def test_every_stratum_is_seen_and_small_ones_are_joined() -> None:
    rows, _, _ = responses(0)
    sample, sizes = draw_sample(rows, 100, 0)
    strata = Counter(item.stratum for item in sample)
    assert strata.keys() == sizes.keys() and min(strata.values()) >= 2
    assert "accepted / small strata" in strata and "accepted / model / boxed; model / all" in strata
    assert 80 <= len(sample) <= 120 and len({item.key for item in sample}) == len(sample)
    assert [item.key for item in draw_sample(rows, 100, 0)[0]] == [item.key for item in sample]
    assert [item.key for item in draw_sample(rows, 100, 1)[0]] != [item.key for item in sample]
    disagreeing = draw_sample(rows, 100, 0, lambda row: row["response"].endswith("7"))[1]
    assert "accepted / rule / boxed; number / all / disagreement" in disagreeing
    assert stratum_of({"rule": "", "correct": False, "benchmark": "test"}) == "refused / rule / none / test"


def test_unsure_and_missing_labels() -> None:
    rows, _, _ = responses(0)
    sample, sizes = draw_sample(rows, 100, 0)
    nothing = error_rates(sample, sizes, {})
    assert nothing.false_positives is None and nothing.labelled == 0 and "unknown" in nothing.lines()[0]
    labels = labelled(sample, 0.0, 0)
    half = dict(list(labels.items())[: len(labels) // 2])
    half[sample[0].key] = "unsure"
    rates = error_rates(sample, sizes, half)
    assert (rates.labelled, rates.unsure) == (len(half) - 1, 1) and rates.false_positives is not None
    for bad, message in (([], "no response to audit"), ([{"response": "x"}], "response 1 has no field 'correct'")):
        with pytest.raises(UserError, match=message):
            draw_sample(bad, 10, 0)


def test_verdicts_may_all_be_wrong_where_the_weights_add_up_to_a_little_more_than_1() -> None:
    sizes = {f"accepted / {i}": size for i, size in enumerate((184, 145, 356, 386, 169, 99))} | {"refused / 0": 10}
    sample = [Sampled(f"{name} {i}", name, {"correct": name < "b"}) for name in sizes for i in range(3)]
    labels: dict[str, Label] = {item.key: "n" for item in sample}
    rates = error_rates(sample, sizes, labels)
    assert rates.false_positives is not None and rates.false_positives.mean > 0.99
