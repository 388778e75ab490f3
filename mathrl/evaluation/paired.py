"""Is one model better than another on the same problems? Student's t over the problems' differences."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mathrl.core.errors import UserError
from mathrl.core.results import Comparison
from mathrl.evaluation.spread import VariancePart, detectable, half_width, two_sided_p, with_further

FURTHER = 2  # problems that the halves of the four outcomes add; the mean is as much nearer to 0


def four_outcomes(differences_P: np.ndarray, responses: float) -> tuple[float, ...]:
    """Differences of further problems: both models solve it, neither does, one or the other.

    The last two are as large as the differences that were seen, so that they do not outweigh the problems: their square
    is half of the mean square of the problems that differ, two with 1 / responses among them, but at most half of
    1 / responses, the variance that k responses of each model have where both solve one in two. Outcomes of twice this
    square and without the mean cost up to 0.07 of power with 30 problems (benchmarks/compare_power.py).

    >>> four_outcomes(np.zeros(30), 2)
    (0.0, 0.0, 0.5, -0.5)
    >>> four_outcomes(np.array([0.0, 0.0, 0.25, 0.25]), 8)  # the root of half of (2/16 + 2/8) / 4
    (0.0, 0.0, 0.2165..., -0.2165...)
    """
    seen = float((differences_P**2).sum() + 2 / responses) / (np.count_nonzero(differences_P) + 2)
    size = math.sqrt(min(seen, 1 / responses) / 2)
    return 0.0, 0.0, size, -size


def compare(
    before: str,
    after: str,
    before_values: Mapping[str, float],
    after_values: Mapping[str, float],
    *,
    responses: float = 1.0,
    confidence: float = 0.95,
) -> Comparison:
    """Compare two models by one value per problem (such as pass@1) over the problems that both have.

    `responses` is the number of responses of each model that a value is the mean of (`summary.responses_behind`).

    Raises:
        UserError: fewer than two problems in common.
    """
    common = sorted(before_values.keys() & after_values.keys())
    if len(common) < 2:
        raise UserError(
            f"{before} and {after} have {len(common)} problems in common, a paired test needs two or more; "
            "evaluate both on the same benchmark"
        )
    differences_P = np.array([after_values[id] - before_values[id] for id in common])
    return paired_test(before, after, differences_P, [], responses, confidence)


def paired_test(
    before: str,
    after: str,
    differences_P: np.ndarray,
    others: Sequence[VariancePart],
    responses: float,
    confidence: float,
) -> Comparison:
    """The test of differences, one per problem; `others` are parts of the variance beside that of the problems.

    Half a problem of each outcome of two models is added (`with_further`), without which few problems with few
    responses show differences that the next ones would undo.
    """
    mean, problems = with_further(differences_P, four_outcomes(differences_P, responses))
    parts = [problems, *others]
    half, p_value = half_width(parts, confidence), two_sided_p(mean, parts)
    return Comparison(
        before,
        after,
        len(differences_P),
        float(differences_P.mean()),
        max(-1.0, mean - half),
        min(1.0, mean + half),
        p_value,
        detectable(parts, confidence) * (1 + FURTHER / len(differences_P)),
        shown=p_value < 1 - confidence,
    )
