"""Math-Verify on one guarded pair. Imported only inside a worker process (see `engine_process`)."""

from __future__ import annotations

from typing import Any


def load() -> Any:
    """Import the engine (it takes seconds) and return its comparison functions by mode."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    config = (
        LatexExtractionConfig(
            normalization_config=NormalizationConfig(basic_latex=True, units=False, boxed="all"), boxed_match_priority=0
        ),
    )

    def tree(text: str) -> Any:
        return parse("$\\boxed{" + text + "}$", config, parsing_timeout=None, fallback_mode="no_fallback")

    def compare(truth: str, answer: str) -> bool:
        gold, target = tree(truth), tree(answer)
        if not gold or not target:
            return False
        return bool(verify(gold, target, float_rounding=12, timeout_seconds=None, raise_on_error=False))

    def compare_response(truth: str, response: str) -> bool:
        """Math-Verify as its users call it, on the whole response: the second grader."""
        gold = parse("$" + truth + "$", parsing_timeout=None)
        return bool(verify(gold, parse(response, parsing_timeout=None), timeout_seconds=None, raise_on_error=False))

    compare("\\frac{1}{2}", "0.5")
    return {"reduced": compare, "whole": compare_response}
