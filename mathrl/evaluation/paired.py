"""Is one model better than another on the same problems? Student's t over the problems' differences."""

from collections.abc import Mapping, Sequence

import numpy as np

from mathrl.core.errors import UserError
from mathrl.core.results import Comparison
from mathrl.evaluation.spread import VariancePart, detectable, half_width, two_sided_p, with_further

FOUR_OUTCOMES = (0.0, 0.0, 1.0, -1.0)  # further problems: both solve it, neither does, one or the other


def compare(
    before: str,
    after: str,
    before_values: Mapping[str, float],
    after_values: Mapping[str, float],
    *,
    confidence: float = 0.95,
) -> Comparison:
    """Compare two models by one value per problem (such as pass@1) over the problems that both have.

    Raises:
        UserError: fewer than two problems in common.
    """
    common = sorted(before_values.keys() & after_values.keys())
    if len(common) < 2:
        raise UserError(
            f"{before} and {after} have {len(common)} problems in common, a paired test needs two or more; "
            "evaluate both on the same benchmark"
        )
    return tested(before, after, np.array([after_values[id] - before_values[id] for id in common]), [], confidence)


def tested(
    before: str, after: str, differences_P: np.ndarray, others: Sequence[VariancePart], confidence: float
) -> Comparison:
    """The test of differences, one per problem; `others` are parts of the variance beside that of the problems.

    Half a problem of each outcome of two models is added (`with_further`), without which few problems show differences
    that an exception among the next would undo.
    """
    mean, problems = with_further(differences_P, FOUR_OUTCOMES)
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
        detectable(parts, confidence),
        shown=p_value < 1 - confidence,
    )
