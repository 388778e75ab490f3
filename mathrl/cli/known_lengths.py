"""What is known of the lengths of a run's data in this checkout, for a dry run and `mathrl plan`."""

from collections.abc import Sequence
from pathlib import Path

from mathrl.compose.derived import DataTokens
from mathrl.core.paths import main_checkout
from mathrl.params import Params
from mathrl.stages import known_lengths


def judge_lengths(params: Params, stages: Sequence[str], typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """What the stages would say of their lengths and benchmarks: a sentence per refused one and per typed one.

    Nothing where it cannot be known (mathrl/stages/known_lengths.py).
    """
    from mathrl.tasks.lengths import is_judged  # as the next, for these commands alone

    if not is_judged(params):
        return [], []
    judged = known_lengths.judge_lengths(params, stages, typed, _curated(params))
    return judged.refused, judged.warned


def data_tokens(params: Params) -> DataTokens | None:
    """Tokens of the prompts and solutions that rl would have; None where they cannot be known."""
    return known_lengths.data_tokens(params, _curated(params)) if params.model.base.type == "pretrained" else None


def _curated(params: Params) -> Path | None:
    """The curated splits of the checkout, if `curate` with these parameters would have nothing to do."""
    from mathrl.tasks.lengths import curated_splits

    return curated_splits(main_checkout(), params)
